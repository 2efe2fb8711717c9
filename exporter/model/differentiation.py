"""Models that compute gradients in `forward`, such as force fields, whose forces are derivatives of the energy.

torch.export records what Python calls, before autograd, and torch.jit.trace records nothing of a backward pass. After
autograd, the operators of the backward pass are operators like any other.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

ATTRIBUTE = "exporter_recording"
_ENGINE = "_engine_run_backward"  # where torch.autograd.grad, Tensor.backward and torch.func compute gradients
_LACKING = ("does not require grad and does not have a grad_fn", "differentiated Tensors does not require grad")


class Recording(enum.IntEnum):
    """What must be recorded for the gradients that a model computes, but leaves to its caller to record."""

    NOTHING = 0
    OPERATORS = 1  # gradients of tensors for which the model itself requires them
    WEIGHTS = 2  # gradients of what the model computes with its weights


def needed(model: torch.nn.Module) -> Recording:
    """Return what is known to be needed for a model: an attribute, which snapshots leave out."""
    found = getattr(model, ATTRIBUTE, Recording.NOTHING)
    return found if isinstance(found, Recording) else Recording.NOTHING


def note(model: torch.nn.Module, what: Recording) -> None:
    """Note what a model needs."""
    vars(model)[ATTRIBUTE] = what


def lacks_gradients(error: Exception) -> bool:
    """Return whether code failed because it computes gradients that were not recorded."""
    return any(said in str(error) for said in _LACKING)


def recorded(call: Callable[[], Any], model: torch.nn.Module, what: Recording) -> Any:
    """Return the result of `call`, which calls the model, while gradients are recorded; its tensors are detached."""
    frozen = [] if what < Recording.WEIGHTS else [one for one in model.parameters() if not one.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(parameter.is_floating_point())
        with torch.enable_grad():
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, call())
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextlib.contextmanager
def refused() -> Iterator[list[str]]:
    """Raise an exception where code computes gradients. Yields a list that is not empty from then on."""
    seen: list[str] = []

    def refuse(*_: Any, **__: Any) -> Any:
        seen.append("forward computes gradients")
        raise RuntimeError(seen[-1])

    engine = getattr(torch.autograd, _ENGINE)
    setattr(torch.autograd, _ENGINE, refuse)
    try:
        yield seen
    finally:
        setattr(torch.autograd, _ENGINE, engine)


def export(
    module: torch.nn.Module, example: tuple[torch.Tensor, ...], dynamic: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    """Run torch.export so that it records operators after autograd; dimensions as for torch.export.export."""
    from torch.export._trace import _export

    made: torch.export.ExportedProgram = _export(
        module, example, dynamic_shapes=dynamic, strict=False, pre_dispatch=False
    )
    return made
