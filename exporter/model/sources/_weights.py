"""Weights for all sources: pretrained if available, otherwise random weights that do not hide errors."""

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

PATIENCE_S = 10.0  # seconds without an answer after which a host counts as unreachable
NOISE = 0.02
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_OFFLINE = "give --weights random, or run it once with a network connection"


@dataclass(frozen=True)
class Pretrained:
    """Published weights: `load` fetches them or finds them in the file `cached`.

    `origin` is the URL (possibly a package URL) where they are published, and `licence` is their licence as the library
    reports it.
    """

    load: Callable[[], nn.Module]
    cached: Path
    origin: str = ""
    licence: str = ""


def choose(weights: str, name: str, pretrained: Pretrained | None, random: Callable[[], nn.Module]) -> nn.Module:
    """Return the model with pretrained or random weights, recorded in its attribute `exporter_weights`.

    Args:
        weights: auto, pretrained or random.
        name: the model's name, for messages.
        pretrained: the published weights, or None.
        random: returns the model with random weights.

    Raises:
        RecipeError: `weights` is pretrained and they are not available; or (for auto too) they are cached but damaged.
    """
    if weights != "random":
        problem, remedy = f"{name} has no pretrained weights", "give --weights random, or --checkpoint FILE"
        if pretrained is not None:
            try:
                return labelled(_fetched(pretrained, name), "pretrained", pretrained.origin, pretrained.licence)
            except (OSError, HTTPException) as error:
                problem = f"the pretrained weights of {name} cannot be fetched: {source_lines.message(error)}"
                remedy = _OFFLINE
        if weights == "pretrained":
            raise RecipeError(problem, remedy)
        warnings.warn(f"random weights: {problem}; --weights pretrained makes this an error", stacklevel=2)
    return labelled(random(), "random")


def _fetched(pretrained: Pretrained, name: str) -> nn.Module:
    try:
        with _patience():
            return pretrained.load()
    except Exception as error:  # each format raises its own error for a truncated file; some raise OSError
        if isinstance(error, (OSError, HTTPException)) and not pretrained.cached.exists():
            raise
        raise RecipeError(
            f"the pretrained weights of {name} cannot be read: {source_lines.named(error)}",
            f"remove {pretrained.cached} to fetch them again",
        ) from error


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Set a default socket timeout: urllib has none, so an unresponsive host would block for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def labelled(model: nn.Module, weights: str, origin: str = "", licence: str = "") -> nn.Module:
    """Return the model in eval mode, labelled with its weights, their origin and their licence."""
    model.exporter_weights = weights  # type: ignore[assignment]
    model.exporter_origin, model.exporter_licence = origin, licence  # type: ignore[assignment]
    return model.eval()


@torch.no_grad()
def stir(model: nn.Module, run: Callable[[], object]) -> nn.Module:
    """Change random weights so that export errors show. The model must be in eval mode and stays in it.

    Constant parameters (scales of 1, biases and heads of 0, layer scales of 1e-6) get noise; otherwise an export that
    drops or folds them wrongly would go unnoticed. Batch norm statistics become those of the batch on which `run` runs
    the model, perturbed by some per cent: with mean 0 and variance 1, the signal of many deep networks vanishes, and
    their outputs depend on the input only in the seventh digit.
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
