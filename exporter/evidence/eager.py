"""What eager gives: in its own precision, and as the reference in float64 on the CPU.

A model that does not run in float64 is its own reference, and the golden's record says so.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from exporter.core import source_lines, time_limit
from exporter.core.errors import ExporterError, ExportError
from exporter.core.parity_records import Tolerance
from exporter.evidence import nonfinite, perturbations
from exporter.model import mixture_of_experts, widening
from exporter.model.tensors import Tensors

Made = TypeVar("Made")

_MISNAMED = re.compile(r"unexpected keyword argument|missing \d+ required (positional|keyword-only) argument")


def run(module: torch.nn.Module, data: Tensors, device: str) -> Tensors:
    """Outputs on the CPU, copies like the inputs: this call may change these in place, a later one those."""
    with torch.no_grad():
        return tuple(t.detach().to("cpu", copy=True) for t in module(*(t.to(device, copy=True) for t in data)))


def references(
    module: torch.nn.Module, data: Sequence[Tensors], eager: Sequence[Tensors], device: str
) -> tuple[list[Tensors], str]:
    """The references for the inputs `data`, and what they are; `eager` are the outputs in the model's own precision."""
    try:
        return in_double(module, lambda: _widened(module, data, eager)), "float64"
    except Exception:  # whatever a model does that was not written for float64
        return [in_float64(one) for one in eager], "eager"
    finally:
        module.to(device)


def in_double(module: torch.nn.Module, compute: Callable[[], Made]) -> Made:
    """What `compute` gives while the module is in float64 on the CPU, its weights widened at each use where all at once
    are too large."""
    module.to("cpu")
    with mixture_of_experts.dense(module):
        if not widening.fits(module):
            try:
                with widening.at_each_use(module) as others, _in_float64(others):
                    return compute()
            except Exception:  # whatever goes wrong with weights that are not what they seem
                widening.allow_all_where_they_fit(module)
        with _in_float64(widening.floating(module)):
            return compute()


def attempts(module: torch.nn.Module, data: Sequence[Tensors], device: str, limit_s: float) -> list[nonfinite.Attempt]:
    """What float64 gives for each of these inputs on the CPU, within so many seconds, or why it gives nothing."""

    def compute() -> list[nonfinite.Attempt]:
        return [nonfinite.attempt(lambda given: run(module, in_float64(given), "cpu"), one, limit_s) for one in data]

    try:
        return in_double(module, compute)
    finally:
        module.to(device)


def _widened(module: torch.nn.Module, data: Sequence[Tensors], eager: Sequence[Tensors]) -> list[Tensors]:
    return [widen(run(module, in_float64(one), "cpu"), e) for one, e in zip(data, eager, strict=True)]


@contextlib.contextmanager
def _in_float64(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """These tensors in float64, and back to the very tensors they were."""
    kept = [t.data for t in tensors]
    default = torch.get_default_dtype()
    try:
        for tensor in tensors:
            tensor.data = tensor.data.double()
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in zip(tensors, kept, strict=True):
            tensor.data = data


def in_float64(data: Tensors) -> Tensors:
    """Floating tensors in float64."""
    return tuple(t.double() if t.is_floating_point() else t for t in data)


def widen(outputs: Tensors, eager: Tensors) -> Tensors:
    """Outputs of float64 as references. They have float64 where eager floats; other outputs are eager's own."""
    if [t.shape for t in outputs] != [t.shape for t in eager]:
        raise ValueError("float64 gives other shapes")
    return tuple(o.double() if e.is_floating_point() else e for o, e in zip(outputs, eager, strict=True))


def is_settled(module: torch.nn.Module, data: Tensors, device: str, tolerance: Tolerance, limit_s: float) -> bool:
    """Whether the model takes these values, and gives what neither the inputs' rounding nor its own overturns.

    time_limit.OutOfTime where a call does not end within so many seconds.
    """
    try:
        with time_limit.stop_after(limit_s):
            outputs = run(module, data, device)
        others = [run(module, perturbations.perturbed(data, sign), device) for sign in (1, -1)]
        (reference,), _ = references(module, [data], [outputs], device)
        return all(perturbations.settled(outputs, other, tolerance) for other in (*others, reference))
    except Exception:  # whatever a model raises at values that it was not made for
        return False


@contextlib.contextmanager
def naming(sizes: str) -> Iterator[None]:
    """What the model raises becomes an ExportError that says at which sizes."""
    try:
        yield
    except ExporterError:
        raise
    except Exception as error:
        if own := source_lines.own(error):
            raise ExportError(own, blame=source_lines.blame(error)) from error
        misnamed = isinstance(error, TypeError) and _MISNAMED.search(str(error))
        raise ExportError(
            f"the model fails at {sizes or 'its example'}: {source_lines.summary(error)}",
            "name the inputs as the arguments of the model's forward"
            if misnamed
            else "mend it or its inputs, or promise only the sizes that it takes: `sizes` of the recipe, "
            "--size NAME=MIN..MAX or MIN..MAX..STEP",
        ) from error
