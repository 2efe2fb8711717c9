"""Numbers computed from sizes in a trace: no constants that torch.jit.load moves to the GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from exporter.model.torchscript import host_numbers

pytestmark = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def product(x: torch.Tensor) -> torch.Tensor:
    count = 1
    for size in x.shape[:2]:
        count *= size
    return x.reshape(count, -1)


def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    count = x.shape[0] * 2
    half = count
    half *= 3  # in a trace, this is a tensor, and changes `count` as well
    return x.new_ones(count, half)


def changed_through_an_alias(x: torch.Tensor) -> torch.Tensor:
    count = x.shape[0] * torch.full((), 2)
    alias = count.long() if isinstance(count, torch.Tensor) else count
    alias *= 3
    return x.new_ones(count, 2)


@torch.jit.script
def counted(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    m = n
    for _ in range(3):
        m += 1
    return x * int(m) + int(n)


def changed_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    return counted(x, torch.as_tensor(x.shape[0] * 2))


def changed_through_a_view(x: torch.Tensor) -> torch.Tensor:
    count = torch.as_tensor(x.shape[0] * 2)
    count.squeeze().mul_(3)
    return x[: count - 3]


def one_side(x: torch.Tensor) -> torch.Tensor:
    parts = [x[:, i * (x.shape[1] // 3) : (i + 1) * (x.shape[1] // 3)].sum() for i in range(3)]
    return torch.stack(parts) * x.shape[0]


FUNCTIONS = [
    product,
    changed_in_place,
    changed_through_an_alias,
    one_side,
    lambda x: x[: x.shape[0] // 2 + 1, : x.shape[1] % 4 - 7],
    lambda x: x[: x.shape[0] - x.shape[1] // -3],
    lambda x: x.new_zeros(5 - x.shape[0], 3 * x.shape[1]),
    lambda x: x * (x.shape[0] / 3) + x.shape[1] ** 0.5,
    lambda x: x.new_zeros(torch.maximum(torch.as_tensor(x.shape[0]), torch.as_tensor(x.shape[1])).long()),
    lambda x: x * (x.shape[0] > 3),
    lambda x: torch.add(torch.as_tensor(x.shape[0]), 2, alpha=3) * x,
    changed_in_a_loop,
    changed_through_a_view,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes_give_the_same_numbers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        traced = torch.jit.trace(Of(function).eval(), torch.ones(2, 6), check_trace=False)
        kept = torch.jit.freeze(traced.eval())
        host_numbers.keep(kept)
        for batch, length in ((2, 6), (4, 12), (5, 7)):
            x = torch.rand(batch, length)
            assert torch.equal(kept(x), traced(x))


@pytest.mark.parametrize("function", [FUNCTIONS[0], *FUNCTIONS[3:7]])
def test_no_constant_tensor_remains(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    kept = torch.jit.freeze(torch.jit.trace(Of(function).eval(), torch.ones(2, 6), check_trace=False).eval())
    assert "[value={" in str(kept.graph)
    host_numbers.keep(kept)
    assert "[value={" not in str(kept.graph)


def test_integers_are_computed_without_tensors() -> None:
    kept = torch.jit.freeze(torch.jit.trace(Of(product).eval(), torch.ones(2, 6), check_trace=False).eval())
    host_numbers.keep(kept)
    assert "NumToTensor" not in kept.code


def test_constants_beside_data_stay() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.full((), 3) + torch.as_tensor(x.shape[0]).to("cpu") * 2

    kept = torch.jit.freeze(torch.jit.trace(Scaled().eval(), torch.ones(2, 6), check_trace=False).eval())
    before = str(kept.graph)
    host_numbers.keep(kept)
    assert str(kept.graph) == before


def test_a_remainder_by_zero_is_an_error() -> None:
    def shortened(x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[0] % (x.shape[1] - 4) + 1]

    kept = torch.jit.freeze(torch.jit.trace(Of(shortened).eval(), torch.ones(2, 6), check_trace=False).eval())
    host_numbers.keep(kept)
    assert kept(torch.ones(5, 7)).shape == (5, 3)
    with pytest.raises(RuntimeError, match="division by 0"):
        kept(torch.ones(2, 4))
