"""Eager's outputs in other precisions, with which artifacts in these precisions are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from exporter.core import precisions, source_lines
from exporter.core.errors import ExporterError
from exporter.core.parity_records import Tolerance
from exporter.evidence import eager, perturbations
from exporter.evidence.golden import Golden, Precision
from exporter.model import mixed_dtypes, precision
from exporter.model.tensors import Tensors

Made = TypeVar("Made")
NO_REFERENCE = "these weights have no float64 reference, so they are judged by eager's outputs in float32"
WORSE = (
    "is less accurate with layers in float32 than without, because such a layer returns float32 values, which are "
    "rounded at its border; artifacts are compared with float32 instead"
)
CAST = "operands of different dtypes are cast to one"


def in_precisions(
    made: Golden,
    module: torch.nn.Module,
    tolerances: Mapping[str, Tolerance],
    outputs: tuple[str, ...],
    device: str,
    kept: Sequence[str] = (),
) -> tuple[dict[str, Precision], tuple[str, ...]]:
    """Return eager's outputs in other precisions with their tolerances, and notes about precisions in which it fails.

    In these, and in int8, artifacts are compared with eager's outputs in float32. int8 leaves out cases whose values
    are far beyond its calibration data. Precisions that store weights in fewer bytes have the outputs of these weights
    in float64 instead. `outputs` are the contract's output dtypes. In half precisions and with stored weights, the
    layers in `kept` and in the precision's name compute in float32.
    """
    found: dict[str, Precision] = {}
    notes: list[str] = []
    for name, tolerance in tolerances.items():
        given: tuple[Tensors, ...] = ()
        stored: tuple[Tensors, ...] = ()
        base, spared = precisions.base(name), (*kept, *precisions.kept(name))
        try:
            if base in precisions.SMALL_WEIGHTS:
                with precision.computing(module, base, outputs, spared) as computes:
                    ours = [case.inputs for case in made.cases]
                    usual = [eager.run(computes, one, device) for one in ours]
                    wide, kind = eager.references(computes, ours, usual, device)
                    stored = tuple(wide)
                    notes += [f"{name}: {NO_REFERENCE}"] if kind != "float64" else []
            elif base != "int8":
                given, cast = _run_in(made, module, name, outputs, device, spared)
                notes += cast
                if spared and base in precision.DTYPES:
                    plain, _ = _run_in(made, module, name, outputs, device, ())
                    if is_worse(made, given, plain, tolerance):
                        given = ()
                        notes.append(f"eager in {name} {WORSE}")
        except Exception as error:  # a model not written for this precision can raise anything
            notes.append(failure(name, error))
        far = tuple(case.name for case in made.cases if base == "int8" and case.record.values == perturbations.LARGE)
        found[name] = Precision(tolerance, given, far, stored)
    return found, tuple(notes)


def _run_in(
    made: Golden, module: torch.nn.Module, name: str, outputs: tuple[str, ...], device: str, kept: Sequence[str]
) -> tuple[tuple[Tensors, ...], tuple[str, ...]]:
    """Return eager's outputs of every case in a precision, and a note if that needs casts."""
    with precision.computing(module, precisions.base(name), outputs, kept) as computes:
        return in_half(computes, name, lambda: tuple(eager.run(computes, case.inputs, device) for case in made.cases))


def in_half(module: torch.nn.Module, name: str, run: Callable[[], Made]) -> tuple[Made, tuple[str, ...]]:
    """Return what `run` returns in eager, or if eager fails, with operands cast to one dtype; and a note on that."""
    try:
        return run(), ()
    except Exception as error:
        try:
            with mixed_dtypes.agreeing(module):
                return run(), (f"{failure(name, error)}; {CAST}",)
        except Exception:
            raise error from None


def failure(precision: str, error: Exception) -> str:
    """Return the note on a precision in which eager fails."""
    if isinstance(error, ExporterError):
        return f"{precision}: {error}"
    return f"eager does not run in {precision}: {source_lines.summary(error)}"


def is_worse(made: Golden, kept: Sequence[Tensors], plain: Sequence[Tensors], tolerance: Tolerance) -> bool:
    """Return whether outputs with layers in float32 are clearly farther from the reference than those without.

    That happens if a layer returns float32 values in the half precision too: at its border they are rounded.
    """
    for case, ours, theirs in zip(made.cases, kept, plain, strict=True):
        for one, other, exact in zip(ours, theirs, case.reference, strict=True):
            if exact.is_floating_point():
                errors = ((t.double().cpu() - exact.double()).square().mean().sqrt().item() for t in (one, other))
                error, usual = errors
                if error > tolerance.k * usual + tolerance.atol:
                    return True
    return False
