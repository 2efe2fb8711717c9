"""Sizes of inputs in Python's float, int, len and range, and in torch.Size."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, flattening, sizes_in_builtins


class Length(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), -1).sum(1)


class Integers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(tuple(int(size) for size in x.shape)) + x


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: int(x.shape[0] * 0.5) + 1]


class Once(nn.Module):
    """Works on segments of its input, which is one segment."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[0]
        return torch.cat([x[start : start + length] for start in range(0, length, length)])


class Centre(nn.Module):
    """Subtracts the middle of the rows, as a rotation about the centre of an image does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = float(x.shape[0] - 1) / 2
        return x - torch.tensor([middle if isinstance(middle, float) else 0.0], dtype=x.dtype)


class Elements(nn.Module):
    """Counts elements by its input's shape, in both ways of reading it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        if x.shape.numel() == 0 or shape[1:].count(7) or (shape[1:] + x.shape).numel() % 4:
            raise ValueError("nothing to scale")
        flat = x.reshape(x.size().numel())
        return flat.reshape(shape[:1] + x.shape[1:]) / x.size(0)


class Windows(nn.Module):
    """Splits images into windows and joins them, as Swin transformers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width = x.shape
        windows = x.view(batch, height // 4, 4, width // 4, 4).transpose(2, 3).reshape(-1, 4, 4).softmax(1)
        batch = int(windows.shape[0] / (height * width / 4 / 4))
        joined = windows.view(batch, height // 4, width // 4, 4, 4).transpose(2, 3)
        return joined.reshape(batch, height, width)


class Types(nn.Module):
    """Needs the type `int` itself, so its size stays fixed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(int).reshape(len(x), -1) * int(x.shape[0])


def captured(model: nn.Module, example: torch.Tensor, **ranges: Range) -> capture.Captured:
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, {"x": example})).eval()
    shape = (*ranges, *example.shape[len(ranges) :])
    return capture.capture(flat, (example,), Contract("model", (TensorSpec("x", "float32", shape),), (), ranges))


@pytest.mark.parametrize("model", [Length(), Integers(), Half(), Once(), Centre(), Elements()])
def test_sizes_stay_symbolic(model: nn.Module) -> None:
    made = captured(model, torch.ones(6, 4), batch=Range(1, 9))
    assert made.fixed == ()
    for size in (2, 5, 9):
        x = torch.randn(size, 4)
        torch.testing.assert_close(made.program.module(check_guards=False)(x)[0], model(x), rtol=0, atol=0)


def test_windows_of_any_number_of_images_and_any_size() -> None:
    sizes = {"batch": Range(1, 4), "height": Range(4, 16, multiple_of=4), "width": Range(4, 16, multiple_of=4)}
    made = captured(Windows(), torch.ones(2, 8, 12), **sizes)
    assert (made.fixed, made.relaxed) == ((), False)
    for shape in ((3, 4, 8), (2, 16, 16), (4, 8, 4)):
        x = torch.randn(*shape)
        torch.testing.assert_close(made.program.module(check_guards=False)(x)[0], Windows()(x), rtol=0, atol=0)


class Counts(nn.Module):
    """Returns numbers that a function computes from the number of rows."""

    def __init__(self, count: Callable[[Any], Any]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_full((2,), 1.0) * self.count(x.shape[0])


@pytest.mark.parametrize(
    "count",
    [
        lambda n: int(n / 14 * 14),
        lambda n: int(n / 49 * 49),
        lambda n: int(n / 22050 * 22050),
        lambda n: int(n * (0.3 / 0.1)),
        lambda n: int(n * 0.29 * 100),
        lambda n: int(n * 0.01 * 100),
        lambda n: int(n * 0.7 / 0.1),
        lambda n: int(n / 4 * 8),
        lambda n: int((n // 2) * 2.0),
        lambda n: int(((n // 2 + 1) // 2) * 4.0),
        lambda n: int(-n / 4 * 8),
        lambda n: int(n * n / n),
        lambda n: 2 if isinstance(int(n), int) else 5,
        lambda n: len([*range(n, 3 * n, n)]) + sum(range(0, -2 * n, -n)),
        lambda n: len([*range(n, n)]) + len([*range(n + 3, n)]) + len([*range(n, n + 7, 3)]),
    ],
)
@pytest.mark.parametrize("example", [6, 7])
def test_numbers_are_pythons(count: Callable[[Any], Any], example: int) -> None:
    made = captured(Counts(count), torch.ones(example, 1), batch=Range(2, 300))
    run = made.program.module(check_guards=False)
    wrong = [n for n in range(2, 260) if run(torch.ones(n, 1))[0][0].item() != count(n)]
    assert not wrong
    assert (made.bounds, made.fixed) == ({}, ())


def test_a_module_that_needs_the_builtins_is_captured_with_them() -> None:
    made = captured(Types(), torch.ones(6, 4), batch=Range(1, 9))
    assert [limit.of for limit in made.fixed] == ["batch"]
    assert "int" not in globals()


def test_replaced_names_are_restored() -> None:
    module = {"range": range, "len": min}
    with sizes_in_builtins.kept([module]):
        assert module["len"] is min, "the module's own"
        assert module["range"] is sizes_in_builtins.counted
        assert module["int"] is not int
    assert module == {"range": builtins.range, "len": min}


def test_other_values() -> None:
    kept: Any = sizes_in_builtins.numbers(int, sizes_in_builtins.symbolic)
    assert (kept("12"), kept("f", 16), kept(), kept.from_bytes(b"\x01")) == (12, 15, 0, 1)
    assert [isinstance(one, kept) for one in (True, 3, "1", 1.0, None)] == [True, True, False, False, False]
    fractional: Any = sizes_in_builtins.numbers(float, sizes_in_builtins.fraction)
    assert [isinstance(one, fractional) for one in (1, "1", 1.0, None)] == [False, False, True, False]
    assert (fractional("0.5"), fractional(), fractional.fromhex("0x1p-1")) == (0.5, 0.0, 0.5)
    assert [issubclass(bool, kept), kept == int, kept == str] == [True, True, False]  # noqa: E721
    assert [sizes_in_builtins.length(one) for one in ([1, 2], torch.ones(3, 1))] == [2, 3]
    assert list(sizes_in_builtins.counted(1, 7, 2)) == [1, 3, 5]
    with pytest.raises(TypeError):
        sizes_in_builtins.length(torch.tensor(1))
