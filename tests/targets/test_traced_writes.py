"""Writes by index in a trace, at other sizes than the example's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from exporter.targets import _tracing

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def _positions(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, at] = x


def _positions_of_all(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, at] = x[:, :, :1]


def _two_indices(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, at[:2] % 2, at[:2]] = x[:, 0, :1]


def _index_first(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache.permute(2, 0, 1, 3)[at] = x.permute(2, 0, 1, 3)


def _list(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[..., [0, 2], : x.size(2), :] = x


def _slice(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :2, : x.size(2)] = x[:1]


def _slice_of_one_row(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, 1, : x.size(2)] = x[None, :, 0]


def _last(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[..., x.size(2) - 1, :2] = x[:, :1, -1, :2]


def _new_dimension(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[None, :, :2, -x.size(2) :] = x


def _whole(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[...] = x.mean(2, keepdim=True)[:, :1]


def _mask(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, torch.arange(9) < x.size(2)] = x[:, :1]


def _number(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, at] = 2.0
    cache[0] = x.sum()


def _in_place(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :2, : x.size(2)] += x
    cache[:, :2, at] *= x


def _other_dtype(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, 0, : x.size(2)] = at[None, :, None]


OF_ALL_HEADS = (_positions, _positions_of_all, _index_first, _mask)


class Cache(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache = torch.ones(x.size(0), 2 if self.write in OF_ALL_HEADS else 3, 9, 4)
        self.write(cache, x, at)
        return cache


def _inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 2, length, 4, generator=generator), torch.randperm(9, generator=generator)[:length]


@pytest.mark.parametrize(
    "write",
    [
        _positions, _positions_of_all, _two_indices, _index_first, _list, _slice, _slice_of_one_row, _last,
        _new_dimension, _whole, _mask, _number, _in_place, _other_dtype,
    ],
)  # fmt: skip
@pytest.mark.parametrize("example", [(1, 4), (2, 1), (3, 5)])
def test_a_write_by_index_keeps_the_sizes_of_its_values(write: Write, example: tuple[int, int]) -> None:
    model = Cache(write).eval()
    with torch.no_grad():
        traced = _tracing.trace(model, _inputs(*example))
    for sizes in ((1, 2), (2, 5), (4, 9), (3, 1)):
        inputs = _inputs(*sizes)
        assert torch.equal(traced(*inputs), model(*inputs))
