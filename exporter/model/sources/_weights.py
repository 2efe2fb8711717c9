"""What sources share of weights: pretrained ones where they can be had, elsewhere random ones that hide no error."""

from __future__ import annotations

import contextlib
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import torch
from torch import nn

from exporter.core import source_lines
from exporter.core.errors import RecipeError

PATIENCE_S = 10.0  # without an answer, a host counts as out of reach
NOISE = 0.02
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OFFLINE = "give --weights random, or run it once where there is a network"


@dataclass(frozen=True)
class Pretrained:
    """Weights that somebody published: `load` fetches them, or finds them in the file `cached`.

    `origin` is where they are published, a package URL or another; `licence` theirs, as the library names it.
    """

    load: Callable[[], nn.Module]
    cached: Path
    origin: str = ""
    licence: str = ""


def choose(weights: str, name: str, pretrained: Pretrained | None, random: Callable[[], nn.Module]) -> nn.Module:
    """The model with pretrained or random weights, which its attribute `exporter_weights` then says.

    Args:
        weights: auto, pretrained or random.
        name: of the model, for messages.
        pretrained: None where there are none.
        random: makes the model with random weights.

    Raises:
        RecipeError: `weights` is pretrained and they cannot be had; or, whatever it is, they are there but damaged.
    """
    if weights != "random":
        problem, remedy = f"there are no pretrained weights of {name}", "give --weights random, or --checkpoint FILE"
        if pretrained is not None:
            try:
                return labelled(_fetched(pretrained, name), "pretrained", pretrained.origin, pretrained.licence)
            except (OSError, HTTPException) as error:
                problem = f"the pretrained weights of {name} cannot be fetched: {source_lines.message(error)}"
                remedy = _OFFLINE
        if weights == "pretrained":
            raise RecipeError(problem, remedy)
        warnings.warn(f"random weights: {problem}; --weights pretrained insists", stacklevel=2)
    return labelled(random(), "random")


def _fetched(pretrained: Pretrained, name: str) -> nn.Module:
    try:
        with _patience():
            return pretrained.load()
    except Exception as error:  # each format has its own for a file that was cut short; some an OSError
        if isinstance(error, (OSError, HTTPException)) and not pretrained.cached.exists():
            raise
        raise RecipeError(
            f"the pretrained weights of {name} cannot be read: {source_lines.named(error)}",
            f"remove {pretrained.cached}, so that they are fetched again",
        ) from error


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """A host that never answers would hold the run for minutes: urllib has no limit of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def labelled(model: nn.Module, weights: str, origin: str = "", licence: str = "") -> nn.Module:
    """The model in eval mode, with word of which weights it has, who published them where, and under what licence."""
    model.exporter_weights = weights  # type: ignore[assignment]
    model.exporter_origin, model.exporter_licence = origin, licence  # type: ignore[assignment]
    return model.eval()


@torch.no_grad()
def stir(model: nn.Module, run: Callable[[], object]) -> nn.Module:
    """Make random weights fit to show errors; the model comes in eval mode, and stays in it.

    Parameters that are all one value (scales of 1, biases and heads of 0, layer scales of 1e-6) get noise: whatever
    drops or folds them wrongly would not be seen. The statistics of batch norm become those of the one batch that `run`
    gives the model, off by some per cent: with a mean of 0 and a variance of 1 the signal of many deep networks dies
    away, and their outputs depend on the input in the seventh digit only.
    """
    for parameter in model.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn_like(parameter), alpha=NOISE)
    norms = [(module, module.momentum) for module in model.modules() if isinstance(module, _NORMS)]
    if not norms:
        return model
    for norm, _ in norms:
        norm.momentum = 1.0
        norm.train()
    run()
    for norm, momentum in norms:
        norm.momentum = momentum
        norm.eval()
        if norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.add_(torch.randn_like(norm.running_mean) * norm.running_var.sqrt(), alpha=0.1)
            norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.8, 1.25))
    return model
