"""Operators that torch cannot translate to ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter import targets
from exporter.core import causes
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options


class Light(torch.nn.Module):
    """The light that remains after each sample of a ray, as in radiance fields."""

    def forward(self, opacity: torch.Tensor) -> torch.Tensor:
        return (1 - opacity).cumprod(-1)


class Filters(torch.nn.Module):
    """Medians of an even or odd number of values; in torch, that of an even number is the smaller one in the middle."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.reshape(-1).median()
        return (*x.median(-1), *x.median(0, keepdim=True), whole, (x * 8).long().median(1).values)


class Ranks(torch.nn.Module):
    """The rank of each value in its row, and its bin, where values may equal a bound or be NaN."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, _ = x.sort(-1)
        bounds = torch.tensor([-1.0, 0.0, 0.5, 1.0])
        odd = torch.cat([x, x.new_tensor([[0.5, torch.nan]]).expand(x.shape[0], 2)], 1)
        return (
            torch.searchsorted(values, odd),
            torch.searchsorted(values, odd, right=True, out_int32=True),
            torch.searchsorted(bounds, odd, side="right"),
            torch.bucketize(odd, bounds),
            torch.bucketize(odd, bounds, right=True, out_int32=True),
        )


class Distances(torch.nn.Module):
    """Distances between rows in several norms, the nearest of them, and stable orders of values with ties."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = torch.cdist(x, x.flip(0))
        ties = (x * 2).round()
        values, order = ties.sort(dim=-1, stable=True, descending=True)
        return (
            *(torch.cdist(x, x + 1, p=p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))),
            near.kthvalue(2, dim=-1).values,
            near.kthvalue(1, dim=0, keepdim=True).values,
            values,
            order,
            ties.argsort(dim=0, stable=True),
        )


class Signs(torch.nn.Module):
    """Sign bits and angles, also of zeros; log-sigmoids of large numbers; rrelu, which is not random in eval mode."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zeros = torch.stack([x * 0, -(x * 0)])
        far = x * 200
        return (
            zeros.signbit(),
            *(
                torch.atan2(zeros, x),
                torch.atan2(zeros, zeros.flip(0)),
                torch.atan2(x, x.flip(0)),
                torch.atan2(x, zeros),
            ),
            (x * 9).long().signbit(),
            (x > 0).signbit(),
            functional.logsigmoid(far),
            functional.logsigmoid(far.double()),
            functional.rrelu(x),
            *(x > 0).sort(dim=-1, stable=True),
        )


class Written(torch.nn.Module):
    """Elements that a mask selects, and elements written by index from a source that is larger than the index."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = x.argsort(1)
        return (
            x.masked_select(x[0] > 0),
            x[0].masked_select(x > 0),
            x.scatter(1, order[:, :2], x),
            x.scatter(1, order[:, :2], x, reduce="add"),
            x.scatter(1, order[:1, :2], x, reduce="multiply"),
            x.scatter(0, x.argsort(0), 2.0, reduce="add"),
            x.scatter_add(1, order[:, :1], x),
            x.scatter_reduce(1, order[:, :1], x, "amax"),
            x.scatter_reduce(1, order % 2, x, "mean"),
            x.scatter_reduce(1, order % 2, x, "mean", include_self=False),
        )


class Squeezed(torch.nn.Module):
    """Leaves out dimensions of size 1, and none of another size."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, four = x[:, :1], x[:, :4]
        return x.squeeze(1), four.squeeze(-1) + 1, x[:, None].squeeze(1) * 2, one.squeeze(-1), x.sum().squeeze(0)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("model", [Filters, Ranks, Distances, Signs, Squeezed, Written])
def test_values_and_dtypes_are_eagers(model: type[torch.nn.Module], tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    module = FlatModule(model(), flatten_inputs(model(), {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("rows", "columns"))
    expected = module(x)
    outputs = tuple(TensorSpec(f"y{i}", str(y.dtype)[6:], (None,) * y.dim()) for i, y in enumerate(expected))
    promise = Contract("model", (spec,), outputs, {"rows": Range(2, 8), "columns": Range(2, 16)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, tmp_path / "model.onnx", Options())
    assert "from the exported program" in made.notes[0]
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    for sizes in ((3, 5), (2, 16), (8, 3), (4, 4)):
        other = torch.randn(sizes)
        for got, wanted in zip(session.run((other,)), module(other), strict=True):
            assert got.dtype == wanted.dtype
            exact = model in (Filters, Ranks) or not got.is_floating_point()
            torch.testing.assert_close(got, wanted, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_nan_is_sorted_last_and_left_out_of_quantiles(tmp_path: Path) -> None:
    def ordered(x: torch.Tensor) -> Outputs:
        return (
            *x.sort(dim=1, stable=True),
            *x.sort(dim=1, stable=True, descending=True),
            x.argsort(dim=0, stable=True),
            x.sort(1).values,
            x.double().msort(),
            x.half().sort(1).values,
            x.quantile(0.3, 1),
            x.nanquantile(0.3, 1),
            x.nanquantile(torch.tensor([0.0, 0.5, 1.0]), 0),
            x.nanquantile(0.25, interpolation="nearest"),
        )

    torch.manual_seed(0)
    module, run = translated(ordered, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(2, 40)}, tmp_path)
    for sizes in ((3, 5), (8, 40), (2, 2)):
        x = torch.randn(sizes)
        for one in (x, x.masked_fill(x > 0.5, torch.nan), x.masked_fill(x > 0.5, -torch.inf), x * torch.nan):
            for got, wanted in zip(run(one), module(one), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


class Pools(torch.nn.Module):
    """Averages with a divisor of their own, with padding and without, in two and three dimensions."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.avg_pool2d(x, 2, divisor_override=3),
            functional.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False, divisor_override=5),
            functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
            functional.avg_pool3d(x[None], (1, 2, 3), 1, divisor_override=7),
            functional.avg_pool3d(x[None], 2, 1),
        )


class Plain(torch.nn.Module):
    """A plain recurrent network."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layers = torch.nn.RNN(4, 6, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.layers(x, torch.full((self.layers.num_layers * (1 + self.layers.bidirectional), 3, 6), 0.5))


def session_of(model: torch.nn.Module, spec: TensorSpec, sizes: dict[str, Range], folder: Path) -> Any:
    """Export the model to ONNX from its exported program, and return a session and the flat module."""
    x = torch.randn([dim if isinstance(dim, int) else 5 for dim in spec.shape])
    module = FlatModule(model, flatten_inputs(model, {"x": x})).eval()
    outputs = tuple(TensorSpec(f"y{i}", "float32", (None,) * y.dim()) for i, y in enumerate(module(x)))
    program = Program(Contract("model", (spec,), outputs, sizes), "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, folder / "model.onnx", Options())
    assert "from the exported program" in made.notes[0]
    return targets.get("onnx").load(folder / "model.onnx", Options()), module


def test_pools_with_a_divisor(tmp_path: Path) -> None:
    sizes = {"height": Range(4, 16), "width": Range(4, 16)}
    session, module = session_of(Pools(), TensorSpec("x", "float32", (1, 2, "height", "width")), sizes, tmp_path)
    for height, width in ((5, 5), (8, 4), (4, 15)):
        x = torch.randn(1, 2, height, width)
        for got, wanted in zip(session.run((x,)), module(x), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:The tensor attributes self.model.layers:UserWarning")  # lists of weights
@pytest.mark.parametrize(
    "options",
    [
        {"nonlinearity": "relu"},
        {"batch_first": True, "bias": False},
        {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True},
    ],
)
def test_plain_recurrent_networks_of_any_length(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = (3, "length", 4) if options.get("batch_first") else ("length", 3, 4)
    spec = TensorSpec("x", "float32", shape)
    session, module = session_of(Plain(**options), spec, {"length": Range(1, 16)}, tmp_path)
    for length in (5, 1, 16):
        x = torch.randn([length if dim == "length" else dim for dim in shape])
        for got, wanted in zip(session.run((x,)), module(x), strict=True):
            torch.testing.assert_close(got, wanted)


class Transposed(torch.nn.Module):
    """A constant whose name in the graph is that of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, t: torch.Tensor, t_inner: torch.Tensor) -> torch.Tensor:
        return t @ self.weight.t() + t_inner


def test_a_constant_with_the_name_of_an_input(tmp_path: Path) -> None:
    model, given = Transposed(), {"t": torch.randn(5, 4), "t_inner": torch.randn(5, 4)}
    module = FlatModule(model, flatten_inputs(model, given)).eval()
    *inputs, output = (TensorSpec(name, "float32", ("rows", 4)) for name in ("t", "t_inner", "output"))
    contract = Contract("model", tuple(inputs), (output,), {"rows": Range(2, 8)})
    program = Program(contract, "cpu", lambda: module, lambda: tuple(given.values()), None)
    targets.get("onnx").export(program, tmp_path / "model.onnx", Options())
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    few = tuple(tensor[:2] for tensor in given.values())
    torch.testing.assert_close(session.run(few), module(*few))


@pytest.mark.filterwarnings("ignore:The tensor attributes", "ignore:LSTM with projections is not supported with oneDNN")
def test_projections_are_refused(tmp_path: Path) -> None:
    class Projected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.LSTM(4, 6, proj_size=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[0]

    with pytest.raises(ExportError, match="LSTM has no projections") as raised:
        session_of(Projected(), TensorSpec("x", "float32", ("length", 3, 4)), {"length": Range(1, 16)}, tmp_path)
    assert causes.of(raised.value, "onnx").name == "projections-onnx"


@pytest.mark.parametrize("opset", [None, 18, 21])
def test_cumulative_products(opset: int | None, tmp_path: Path) -> None:
    x = torch.rand(3, 5)
    module = FlatModule(Light(), flatten_inputs(Light(), {"opacity": x})).eval()
    specs = [TensorSpec(name, "float32", ("rays", "samples")) for name in ("opacity", "output")]
    promise = Contract("light", (specs[0],), (specs[1],), {"rays": Range(2, 8), "samples": Range(2, 16)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, tmp_path / "model.onnx", Options(opset=opset))
    assert "from the exported program" in made.notes[0]
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    for sizes in ((3, 5), (2, 16), (8, 1)):
        opacity = torch.rand(sizes)
        opacity[0, 0] = 1.0
        torch.testing.assert_close(session.run((opacity,)), module(opacity))


def test_integers_beyond_float32_and_remainders(tmp_path: Path) -> None:
    whole = torch.tensor([2**60 + 1, 1764404465, -7, 7, -(2**55) - 3, 60])

    def divided(x: torch.Tensor) -> Outputs:
        n = x.long() + whole
        return (
            *(torch.div(n, 60, rounding_mode=mode) for mode in ("trunc", "floor")),
            *(torch.div(n, torch.tensor(-60), rounding_mode=mode) for mode in ("trunc", "floor")),
            *(
                n // 60,
                1000 // (n % 77 - 90),
                n % 1000,
                torch.fmod(n, 1000),
                n.remainder(torch.tensor(-1000)),
                torch.fmod(n, torch.tensor(77)),
            ),
            *(torch.div(n.int(), 7, rounding_mode="trunc"), torch.div(x, 0.3, rounding_mode="trunc"), n.div(2.0)),
            *(x % 0.1, torch.remainder(x, -0.3), x.remainder(torch.tensor([0.7])), torch.fmod(x, 0.1)),
        )

    x = torch.tensor([1.0, 0.9, -1.0, -0.35, 0.0, 2.0])
    module, run = translated(divided, x, {}, tmp_path)
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)
