"""Booleans as numbers, sizes of pools and tensors, warnings, branches and freezing of a trace."""

from __future__ import annotations

import linecache
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.jit._trace import TracerWarning
from torch.nn import functional as F

from exporter.core import causes
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import _tracing, trace
from exporter.targets._tracing import Branches, Traceable, warned


class Flagged(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor([True, False, False]))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.flag.clone()) ^ (x > 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda flag: flag.fill_(True),
        lambda flag: flag.masked_fill(flag, False),
        lambda flag: flag.masked_fill_(~flag, value=True),
        lambda flag: torch.full_like(flag, fill_value=True),
        lambda flag: flag.new_full((3,), True),
        lambda flag: flag == False,  # noqa: E712
        lambda flag: flag >= True,
        lambda flag: flag.scatter(0, flag.long(), True),
        lambda flag: torch.where(flag, flag, True),
        lambda flag: torch.where(flag, False, True),
        lambda flag: torch.full((3,), True),
        lambda flag: torch.full(size=(3,), fill_value=True, dtype=torch.bool),
        lambda flag: flag + True,
        lambda flag: flag.mul_(False),
        lambda flag: flag & True,
        lambda flag: flag ^ True,
    ],
)
def test_a_bool_may_be_used_as_a_number(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, x = Flagged(change).eval(), torch.tensor([1.0, -1.0, 1.0])
    with torch.no_grad(), Traceable():
        traced = torch.jit.freeze(torch.jit.trace(model, -x, check_trace=False).eval())
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + True,
        lambda x: True * x.long(),
        lambda x: torch.where(x > 0, x.int(), True),
        lambda x: torch.where(x > 0, x, other=False),
        lambda x: torch.full((2,), True, dtype=torch.float16),
    ],
)
def test_a_bool_with_numbers_keeps_the_dtype_of_the_result(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Changing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(x)

    x = torch.tensor([1.5, -1.0, 3.0])
    with torch.no_grad(), Traceable():
        traced = torch.jit.freeze(torch.jit.trace(Changing().eval(), -x, check_trace=False).eval())
    torch.testing.assert_close(traced(x), change(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool1d(x, x.size(2)),
        lambda x: F.max_pool1d(x, kernel_size=x.size(2) // 2, stride=x.size(2) // 4),
        lambda x: F.avg_pool1d(x, x.size(2)),
        lambda x: F.max_pool2d(x, x.size(1), return_indices=True)[1],
        lambda x: F.avg_pool2d(x, x.size(1)),
        lambda x: F.avg_pool2d(x, kernel_size=x.size(1), stride=(x.size(1), 2)),
    ],
)
def test_a_pool_over_a_size_of_the_input(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Pooling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return pool(x)

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), Traceable():
        traced = torch.jit.trace(Pooling().eval(), torch.randn(2, 4, 8, generator=generator), check_trace=False)
    other = torch.randn(3, 5, 20, generator=generator)
    assert torch.equal(traced(other), pool(other))


def test_a_roll_by_a_size_of_the_input() -> None:
    class Rolls(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.roll(x.size(1) // 2, 1), torch.roll(x, shifts=x.size(0), dims=0), torch.roll(x, 1, 1)

    with torch.no_grad():
        traced = _tracing.trace(Rolls().eval(), (torch.randn(2, 4),))
    x = torch.randn(5, 7)
    for got, expected in zip(traced(x), Rolls()(x), strict=True):
        assert torch.equal(got, expected)


def test_a_check_of_sizes_is_made_for_the_example() -> None:
    class Unpools(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.size(2) > 3, lambda: "too short")
            pooled, at = F.max_pool2d(x, 2, return_indices=True)
            return F.max_unpool2d(pooled, at, 2, output_size=x.shape)

    with torch.no_grad(), warned() as caught:
        traced = _tracing.trace(Unpools().eval(), (torch.randn(2, 3, 8, 9),))
        with pytest.raises(RuntimeError, match="too short"):
            _tracing.trace(Unpools().eval(), (torch.randn(2, 3, 2, 9),))
    assert not [one for one in caught if "_tracing" in one.filename]
    for shape in ((2, 3, 8, 9), (1, 3, 5, 4), (3, 2, 12, 7)):
        x = torch.randn(shape)
        assert torch.equal(traced(x), Unpools()(x))


def test_a_check_of_values_is_refused_as_in_eager() -> None:
    class Checks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.sum() > 0)
            return x

    with torch.no_grad(), pytest.raises(TypeError, match="cond must be a bool"):
        _tracing.trace(Checks().eval(), (torch.ones(3),))


def test_a_trace_of_gradients_is_refused() -> None:
    """torch.jit.trace keeps the example's gradients as constants."""

    class Slope(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(x.square().sum(), x)[0]

    with torch.no_grad(), warned(), pytest.raises(RuntimeError) as raised:
        _tracing.trace(Slope().eval(), (torch.randn(2, 4),))
    cause = causes.find(str(raised.value), "trace")
    assert cause is not None
    assert cause.name == "computes-gradients"


def test_a_pool_with_a_divisor_of_the_input() -> None:
    class Pooling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.avg_pool2d(x, 2, divisor_override=x.size(1))

    x = torch.randn(2, 4, 8)
    with torch.no_grad(), Traceable():
        traced = torch.jit.trace(Pooling().eval(), x, check_trace=False)
    assert torch.equal(traced(x), F.avg_pool2d(x, 2, divisor_override=4))


def _numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    height, width = x.shape[-2:]
    return (
        torch.tensor([width, height]),
        torch.tensor([width, 0.5 * height], dtype=x.dtype),
        torch.as_tensor([[height, 1], [2, width]]),
        torch.tensor((height > 3, True)),
        torch.tensor(data=x.shape),
        x.half().new_tensor([width, 0.1]),
        x.clamp(max=width - 7),
        torch.clamp(input=x, min=-height, max=height),
    )


def test_tensors_of_sizes_and_limits_are_not_fixed() -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return _numbers(x)

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), warned() as caught, Traceable():
        traced = torch.jit.trace(Numbers(), torch.randn(2, 3, 4, generator=generator), check_trace=False)
    assert not [one for one in caught if "constant" in str(one.message)]
    frozen = torch.jit.freeze(traced.eval())
    x = 20 * torch.randn(3, 9, 5, generator=generator)
    for made, expected in zip(frozen(x), _numbers(x), strict=True):
        assert made.dtype == expected.dtype
        assert torch.equal(made, expected)


def test_other_sequences_of_numbers_are_constants() -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([np.array([1, 2]), [x.shape[1], 3], range(2)])

    with torch.no_grad(), warned(), Traceable():
        traced = torch.jit.trace(Numbers(), torch.randn(2, 4), check_trace=False)
    assert traced(torch.randn(2, 4)).tolist() == [[1, 2], [4, 3], [0, 1]]


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - int(x.max())  # here


def test_a_warning_names_the_line_of_the_model() -> None:
    with torch.no_grad(), warned() as caught, Traceable():
        torch.jit.trace(Branching().eval(), -torch.ones(3), check_trace=False)
        warnings.warn("another", UserWarning, stacklevel=1)
    lines = [linecache.getline(w.filename, w.lineno) for w in caught if issubclass(w.category, TracerWarning)]
    assert len(lines) >= 2
    assert all("# here" in line for line in lines)
    assert (caught[-1].filename, str(caught[-1].message)) == (__file__, "another")


def test_torch_cannot_trace_a_bool_as_a_number() -> None:
    with pytest.raises(RuntimeError, match="aten::fill_"):
        torch.jit.trace(Flagged(lambda flag: flag.fill_(True)).eval(), torch.ones(3), check_trace=False)


class Rounding(torch.nn.Module):
    """Treats numbers made of sizes as Python's floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, : round(x.shape[1] * 0.6)] * round(x.shape[1] / 3, 1)
        return x * 2 if (x.shape[0] / 2).is_integer() else x


def test_numbers_made_of_sizes_have_the_methods_of_floats() -> None:
    example = torch.ones(4, 7)
    with torch.no_grad(), warned():
        run = _tracing.trace(flat(Rounding(), example), (example,))
    for columns in (7, 8, 11):
        x = torch.randn(4, columns)
        torch.testing.assert_close(run(x)[0], Rounding()(x))
    assert not hasattr(torch.Tensor, "is_integer")


class Windows(torch.nn.Module):
    """Converts sizes with int and len, as Swin transformers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width = x.shape
        windows = x.view(len(x), height // 7, 7, width // 7, 7).transpose(2, 3).reshape(-1, 7, 7).softmax(1)
        batch = int(windows.shape[0] / (height * width / 7 / 7))
        return windows.view(batch, height // 7, width // 7, 7, 7).transpose(2, 3).reshape(batch, height, width)


class Share(torch.nn.Module):
    """100 * 0.29 is less than 29 in float64, and not in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            x[: int(x.shape[0] * 0.29)] * int(x.shape[0] ** 0.5) + int((x.shape[0] + 0.1) / 0.7) - int(1.05 ** len(x))
        )


class Padded(torch.nn.Module):
    """Pads its input to a multiple of 8, as audio codecs do, and halves it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, math.ceil(x.shape[1] / 8) * 8 - x.shape[1]))
        return x[:, math.floor(x.shape[1] / 2) :] * math.ceil(torch.ones(1).sum())


class Parts(torch.nn.Module):
    """Divides by a size, adds flags of sizes, and rounds where float32 differs from float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        flags = int(n > 8) + int(n > 20)
        return x.new_ones(2) * int(49 / len(x)) + flags * 100 + round(n * 0.13) * 1000


class Bounded(torch.nn.Module):
    """Takes the smaller or larger of sizes and numbers, and divides sizes with a remainder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        part = x[: min(rows, 2 * columns, 8), : max([columns // 2, 3])] * min(1.0, 5 / columns)
        whole, rest = divmod(rows, 3)
        tenths = int(min(0.7, len(x) / 4) * 10) + int(min(rows, 8.0))
        return part + whole * 10 + rest + divmod(50, columns)[1] + max(2, 3) + tenths


class Centre(torch.nn.Module):
    """Subtracts the middle of its input, as a rotation about the centre of an image does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.tensor([float(x.shape[1] - 1) / 2, float(x.shape[0])])
        return x[:, :2] - middle - torch.asarray([x.shape[0] / 2, 1.0])


class Cached(torch.nn.Module):
    """Keeps the positions that it made for an earlier call."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.positions is None or self.positions.shape[0] < x.shape[0]:
            self.positions = torch.arange(x.shape[0], dtype=torch.float32)
        return x * self.positions[: len(x), None]


class Typed(torch.nn.Module):
    """Needs the type `int` itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(int) * int(x.shape[0])


def flat(model: torch.nn.Module, x: torch.Tensor) -> FlatModule:
    return FlatModule(model, flatten_inputs(model, {"x": x})).eval()


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Windows(), ((2, 14, 21), (5, 7, 49))),
        (Share(), ((10, 1), (100, 1), (103, 1))),
        (Padded(), ((2, 13), (3, 16), (3, 30))),
        (Parts(), ((7, 1), (49, 1), (12, 1), (30, 1), (1750, 1))),
        (Bounded(), ((4, 4), (9, 3), (12, 20), (3, 1), (7, 30))),
        (Centre(), ((4, 6), (5, 9), (1, 2))),
        (Cached(), ((4, 1), (3, 1))),
    ],
    ids=["windows", "share", "padded", "parts", "bounded", "centre", "cached"],
)
def test_functions_of_python_keep_sizes(model: torch.nn.Module, shapes: tuple[tuple[int, ...], ...]) -> None:
    example = torch.randn(shapes[0])
    with torch.no_grad(), warned():
        run = _tracing.trace(flat(model, example), (example,))
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(run(x)[0], model(x), rtol=0, atol=0)
    assert "int" not in globals()


def test_a_trace_that_needs_the_type_int_itself_keeps_its_numbers() -> None:
    x = torch.full((3, 4), 2.0)
    with torch.no_grad(), warned():
        run = _tracing.trace(flat(Typed(), x), (x,))
    assert torch.equal(run(x)[0], Typed()(x))
    assert torch.equal(run(torch.ones(5, 4))[0], torch.full((5, 4), 3)), "the example's size"


class Asking(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1 and bool((self.on > 0).all()) and bool((x.new_zeros(x.shape) == 0).all()):
            x = x + 1
        if x.sum() > 0:
            x = x * 2
        while x.abs().max() > 1:
            x = x / 2
        return x


def test_only_branches_on_values_are_found() -> None:
    with torch.no_grad(), warned(), Branches() as branches:
        torch.jit.trace(Asking(), torch.ones(2, 3), check_trace=False)
    (note,) = branches.notes()
    first = Asking.forward.__code__.co_firstlineno
    assert note.startswith(
        f"a branch depends on values ({__file__}:{first + 3}, {__file__}:{first + 5}): the trace keeps"
    )
    with torch.no_grad(), warned(), Branches() as none:
        torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(2, 3), check_trace=False)
    assert none.notes() == ()


def test_branches_outside_a_trace_are_ignored() -> None:
    """Asking torch for a tensor's value in the trace when nothing is being traced would crash the process."""
    with Branches() as branches:
        assert bool(torch.ones(1))
    assert branches.notes() == ()


def test_a_trace_is_frozen_without_folding_if_torch_fails_to_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    # As torch 2.11 does on a GPU, where the number that scales a convolution's output is a tensor on the CPU.
    usual = torch.jit.freeze

    def freeze(
        module: torch.jit.ScriptModule, optimize_numerics: bool = True, **options: Any
    ) -> torch.jit.ScriptModule:
        if optimize_numerics:
            raise RuntimeError('stack_out INTERNAL ASSERT FAILED at "csrc/jit/passes/frozen_conv_folding.cpp":276')
        return usual(module, optimize_numerics=False, **options)

    monkeypatch.setattr(torch.jit, "freeze", freeze)
    model, x = nn.Conv1d(2, 3, 1).eval(), torch.randn(1, 2, 4)
    frozen = trace._frozen(torch.jit.trace(model, x))
    assert not list(frozen.parameters())
    assert torch.equal(frozen(x), model(x))
