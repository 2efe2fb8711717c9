"""Runs eager: in its own precision, and as the reference in float64 on the CPU.

A model that does not run in float64 is its own reference; the golden's record says so.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from exporter.core import causes, source_lines, time_limit
from exporter.core.errors import ExporterError, ExportError
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import casts, nonfinite, perturbations
from exporter.model import custom_ops, mixture_of_experts, placement, tensors, widening
from exporter.model.tensors import Tensors

Made = TypeVar("Made")

_MISNAMED = re.compile(r"unexpected keyword argument|missing \d+ required (positional|keyword-only) argument")


def run(module: torch.nn.Module, data: Tensors, device: str) -> Tensors:
    """Return the outputs as copies on the CPU.

    Inputs and outputs are copied because this call may change its inputs in place, and a later call the outputs.
    """
    with torch.no_grad():
        return tuple(t.detach().to("cpu", copy=True) for t in module(*(t.to(device, copy=True) for t in data)))


def references(module: torch.nn.Module, data: Sequence[Tensors], eager: Sequence[Tensors]) -> tuple[list[Tensors], str]:
    """Return the references for the inputs `data`, and their kind: "float64" or "eager".

    `eager` holds the outputs in the model's own precision; they become the references if float64 fails, or has NaN
    where they are finite: code such as `mask.float() * torch.finfo(scores.dtype).min` gives it only there.
    """
    found, _, kind = references_also(module, data, eager, ())
    return found, kind


def references_also(
    module: torch.nn.Module,
    data: Sequence[Tensors],
    eager: Sequence[Tensors],
    unusual: Sequence[tuple[Tensors, Tensors]],
) -> tuple[list[Tensors], list[Tensors | None], str]:
    """Return what `references` does, and between the two the references for unusual inputs, given with their outputs.

    Such a reference is None if the model fails there in float64. The weights are converted only once for all.
    """

    def compute() -> tuple[list[Tensors], list[Tensors | None]]:
        return _widened(module, data, eager), [_attempted(module, one, outputs) for one, outputs in unusual]

    try:
        found, others = in_double(module, compute)
        usable = as_finite(found, eager) and all(casts.agree(module, *pair) for pair in zip(eager, found, strict=True))
        return (found, others, "float64") if usable else (_own(eager), others, "eager")
    except Exception:  # a model that was not written for float64 can raise anything
        return _own(eager), [in_float64(outputs) for _, outputs in unusual], "eager"


def _own(eager: Sequence[Tensors]) -> list[Tensors]:
    return [in_float64(one) for one in eager]


def as_finite(found: Sequence[Tensors], eager: Sequence[Tensors]) -> bool:
    """Return whether references are finite wherever eager's outputs are."""
    pairs = (pair for both in zip(found, eager, strict=True) for pair in zip(*both, strict=True))
    return not any(bool((own.isfinite() & ~reference.isfinite()).any()) for reference, own in pairs)


def in_double(module: torch.nn.Module, compute: Callable[[], Made]) -> Made:
    """Return the result of `compute`, run with the module in float64 on the CPU.

    Weights that do not fit into memory in float64 are widened at each use. If the model fails, its own casts to other
    floating dtypes become casts to float64.
    """
    with placement.on_cpu(module), mixture_of_experts.dense(module):
        if not widening.fits(module):
            try:
                with widening.at_each_use(module) as others, _in_float64(others):
                    return casts.run(module, compute)
            except Exception:  # widening at each use fails for some kinds of weights
                widening.allow_all_where_they_fit(module)
        with _in_float64(widening.floating(module)):
            return casts.run(module, compute)


def attempts(module: torch.nn.Module, data: Sequence[Tensors], limit_s: float) -> list[nonfinite.Attempt]:
    """Run the model in float64 on the CPU for each input, for at most `limit_s` seconds a call.

    Return the outputs for each input, or why there are none.
    """

    def compute() -> list[nonfinite.Attempt]:
        return [nonfinite.attempt(lambda given: run(module, in_float64(given), "cpu"), one, limit_s) for one in data]

    return in_double(module, compute)


def _widened(module: torch.nn.Module, data: Sequence[Tensors], eager: Sequence[Tensors]) -> list[Tensors]:
    return [widen(run(module, in_float64(one), "cpu"), e) for one, e in zip(data, eager, strict=True)]


def _attempted(module: torch.nn.Module, data: Tensors, outputs: Tensors) -> Tensors | None:
    try:
        return widen(run(module, in_float64(data), "cpu"), outputs)
    except Exception:  # at unusual values, a model can raise anything
        return None


@contextlib.contextmanager
def _in_float64(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hold these tensors in float64 within the context; restore their original storage at its end."""
    kept = [t.data for t in weights]
    default = torch.get_default_dtype()
    try:
        for tensor in weights:
            tensor.data = tensors.in_float64(tensor.data)
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in zip(weights, kept, strict=True):
            tensor.data = data


def in_float64(data: Tensors) -> Tensors:
    """Return the tensors with floating ones converted to float64, and complex ones to complex128."""
    return tuple(map(tensors.in_float64, data))


def widen(outputs: Tensors, eager: Tensors) -> Tensors:
    """Return float64 outputs as references: float64 where eager's output is floating, complex128 where it is complex.

    Other outputs are eager's own.

    Elements that overflow in eager's dtype are eager's own: they are limits of a dtype, such as the torch.finfo().max
    of masked boxes. Raises ValueError if the shapes differ.
    """
    if [t.shape for t in outputs] != [t.shape for t in eager]:
        raise ValueError("the outputs in float64 have other shapes")
    return tuple(_bounded(o, e) if tensors.is_inexact(e) else e for o, e in zip(outputs, eager, strict=True))


def _bounded(output: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    if eager.is_complex():
        wide, own = (torch.view_as_real(tensors.in_float64(one).resolve_conj()) for one in (output, eager))
        beyond = wide.abs() > torch.finfo(eager.dtype).max
        return torch.view_as_complex(torch.where(beyond & own.isfinite(), own, wide))
    beyond = output.abs() > torch.finfo(eager.dtype).max
    return torch.where(beyond & eager.isfinite(), eager.double(), output.double())


def is_settled(
    module: torch.nn.Module, data: Tensors, device: str, tolerance: OutputTolerances, limit_s: float
) -> bool:
    """Return whether the model accepts these values and rounding, of its inputs or its own, hardly changes the outputs.

    Raises time_limit.OutOfTime if a call takes longer than `limit_s` seconds.
    """
    outputs = settled_outputs(module, data, device, tolerance, limit_s)
    if outputs is None:
        return False
    _, (reference,), _ = references_also(module, (), (), [(data, outputs)])
    return reference is None or perturbations.settled(outputs, reference, tolerance)  # None: not written for float64


def settled_outputs(
    module: torch.nn.Module, data: Tensors, device: str, tolerance: OutputTolerances, limit_s: float
) -> Tensors | None:
    """Return the outputs; None if the model does not accept these values, or rounding of its inputs changes them.

    Raises time_limit.OutOfTime if a call takes longer than `limit_s` seconds.
    """
    try:
        with time_limit.stop_after(limit_s):
            outputs = run(module, data, device)
        signs = (1, -1) if any(t.is_floating_point() for t in data) else (1,)  # once more: it may be random
        others = [run(module, perturbations.perturbed(data, sign), device) for sign in signs]
        return outputs if all(perturbations.settled(outputs, other, tolerance) for other in others) else None
    except Exception:  # at unusual values, a model can raise anything
        return None


def safe_on_gpu(
    module: torch.nn.Module, example: Tensors, changes: Mapping[str, Tensors], device: str
) -> dict[str, Tensors]:
    """Return the changes of the example that may be tried on the device: on a GPU, those that a CPU accepts.

    An index out of range is an exception on a CPU, but ends the whole process's use of a GPU. Changes of floating-point
    values alone are not tried on the CPU.
    """
    doubtful = [name for name, data in changes.items() if not all(map(_is_float_or_equal, data, example))]
    if device == "cpu" or not doubtful:
        return dict(changes)
    try:
        with placement.on_cpu(module):
            limit_s = time_limit.of(lambda: run(module, example, "cpu"))
            refused = {name for name in doubtful if not _accepts(module, changes[name], limit_s)}
    except Exception:  # the model may have kernels for the GPU alone
        refused = set()
    return {name: data for name, data in changes.items() if name not in refused}


def _is_float_or_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.is_floating_point() or torch.equal(one, other)


def _accepts(module: torch.nn.Module, data: Tensors, limit_s: float) -> bool:
    """Return whether the model runs on the CPU with these inputs, as far as that is known after `limit_s` seconds."""
    try:
        with time_limit.stop_after(limit_s):
            run(module, data, "cpu")
    except time_limit.OutOfTime:
        return True
    except Exception:  # at unusual values, a model can raise anything
        return False
    return True


def _names(signature: inspect.Signature) -> list[str]:
    """Return the arguments as they are written, without annotations and the values of defaults."""
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    found = signature.parameters.values()
    return [stars.get(one.kind.name, "") + one.name + ("=…" if one.default is not one.empty else "") for one in found]


def _arguments(model: torch.nn.Module | None) -> str:
    """Return `, which takes x, mask` for the arguments that the model's forward takes, or "" if they are not known."""
    try:
        names = _names(inspect.signature(model.forward)) if model is not None else []
    except (TypeError, ValueError):  # it has no signature
        return ""
    return f", which takes {', '.join(names)}" if names else ""


@contextlib.contextmanager
def naming(sizes: str, model: torch.nn.Module | None = None) -> Iterator[None]:
    """Convert an exception of the model to an ExportError that names the sizes.

    With the model, the remedy for inputs with other names than the arguments of its forward lists those.
    """
    try:
        yield
    except ExporterError:
        raise
    except Exception as error:
        if own := source_lines.own(error):
            raise ExportError(own, blame=source_lines.blame(error)) from error
        raise ExportError(
            f"the model fails at {sizes or 'its example'}: {source_lines.summary(error)}", _remedy(error, model)
        ) from error


def _remedy(error: Exception, model: torch.nn.Module | None) -> str:
    if custom_ops.is_missing(error):
        return custom_ops.GIVE
    if isinstance(error, TypeError) and _MISNAMED.search(str(error)):
        return f"name the inputs like the arguments of the model's forward{_arguments(model)}"
    return causes.remedy(str(error), "eager") or (
        "fix the model or its inputs, or promise only sizes that it accepts: `sizes` of the recipe, "
        "--size NAME=MIN..MAX or MIN..MAX..STEP"
    )
