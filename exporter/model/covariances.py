"""torch.cov and torch.corrcoef, which no capture can follow because they check values, as operations on tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Replace the functions within this context; with weights of the observations they do what they always do."""
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.Tensor):
            stack.enter_context(mock.patch.object(owner, "cov", _unweighted(owner.cov)))
            stack.enter_context(mock.patch.object(owner, "corrcoef", _correlations))
        yield


def _unweighted(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def cov(input: torch.Tensor, *, correction: int = 1, **weights: Any) -> torch.Tensor:
        if input.dim() > 2 or any(weight is not None for weight in weights.values()):
            return usual(input, correction=correction, **weights)
        return _covariances(input, correction)

    return cov


def _covariances(input: torch.Tensor, correction: int = 1) -> torch.Tensor:
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    rows = rows.to(torch.result_type(rows, 1.0))
    apart = rows - rows.mean(1, keepdim=True)
    count: Any = torch.sym_max(rows.shape[1] - correction, 0)
    found: torch.Tensor = (apart @ apart.mH / count).squeeze()
    return found


def _correlations(input: torch.Tensor) -> torch.Tensor:
    found = _covariances(input)
    if found.dim() == 0:
        return found / found
    spread = found.diagonal().real.sqrt() if found.is_complex() else found.diagonal().sqrt()
    found = found / spread[:, None] / spread[None, :]
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)
