"""Layers that stay in float32 in a model in a half precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from exporter.core import tolerances
from exporter.core.errors import ExportError
from exporter.core.parity_records import CaseRecord
from exporter.evidence import make_golden
from exporter.evidence.golden import Case, Golden
from exporter.model import kept_layers, precision
from exporter.model.flattening import FlatModule, flatten_inputs


class Branches(nn.Module):
    """Takes several inputs, one of them by name, has a buffer, and returns a dict with a tuple inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 300.0))

    def forward(self, a: torch.Tensor, *, b: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.layer(a) * self.scale + b
        return {"y": y.softmax(-1), "pair": (y, [y.square()])}


class InPlace(nn.Module):
    """Changes its input, which the caller goes on to use."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu_() + 1


class Net(nn.Module):
    """Has a layer of each difficult kind: nested, tied, shared, recurrent, normalising, in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.branches, self.inplace = nn.Embedding(10, 8), Branches(), InPlace()
        self.norm, self.batch_norm = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.layers[0][0]  # type: ignore[index]
        self.unused = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.branches(x, b=self.embed(ids))
        y = self.batch_norm(self.norm(found["y"] + found["pair"][1][0] / 1e5))
        z = y * 1
        y = self.inplace(z) + z
        for layer in self.layers:
            y = y + layer(y)
        out, (hidden, _) = self.lstm(self.again(y)[:, None])
        return self.head(out[:, 0] + hidden[0]), nn.functional.linear(y, self.unused.weight)


@pytest.fixture(scope="module")
def flat() -> FlatModule:
    model = Net().eval().requires_grad_(False)
    return FlatModule(model, flatten_inputs(model, inputs())).eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=generator), torch.arange(4)


LAYERS = (
    ("branches.layer", "norm", "batch_norm"),
    ("layers", "layers.1.0"),
    ("again", "lstm"),
    ("embed",),
    ("head", "inplace"),
)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kept", LAYERS, ids=".".join)
def test_a_kept_layer_computes_in_float32_and_the_rest_in_the_half_precision(
    flat: FlatModule, kept: tuple[str, ...]
) -> None:
    seen: dict[str, set[torch.dtype]] = {}
    before = {name: tensor.clone() for name, tensor in flat.state_dict().items()}
    types = [type(module) for module in flat.modules()]
    with precision.computing(flat, "bf16", ("float32", "float32"), kept) as cast, torch.no_grad():
        kept_layers.require_crossed(cast, kept, inputs())
        model = flat.model
        for name, layer in model.named_modules(remove_duplicate=False):
            for weight in layer.parameters(recurse=False):
                seen.setdefault(name, set()).add(weight.dtype)
        outputs = cast(*inputs())
        traced = torch.jit.freeze(torch.jit.trace(cast, inputs(), strict=False, check_trace=False).eval())
        assert all(map(torch.equal, traced(*inputs()), outputs))
    inside = {name for name in seen if any(name == k or name.startswith(f"{k}.") for k in kept)}
    inside |= {"again"} if "layers" in kept else {"layers.0.0"} if "again" in kept else set()
    assert {name for name, dtypes in seen.items() if dtypes == {torch.float32}} == inside
    assert all(dtypes == {torch.bfloat16} for name, dtypes in seen.items() if name not in inside)
    assert [type(module) for module in flat.modules()] == types
    assert flat.model.head.weight is flat.model.embed.weight
    assert all(torch.equal(before[name], tensor) for name, tensor in flat.state_dict().items())


@pytest.mark.filterwarnings("ignore:The tensor attributes self.flat.model.lstm")  # so says torch of any LSTM
def test_an_exported_program_computes_the_same(flat: FlatModule) -> None:
    kept = ("branches", "inplace", "lstm", "layers")
    with precision.computing(flat, "bf16", ("float32", "float32"), kept) as cast, torch.no_grad():
        kept_layers.require_crossed(cast, kept, inputs())
        exported = torch.export.export(cast, inputs()).module()
        assert all(map(torch.equal, exported(*inputs()), cast(*inputs())))


def test_a_layer_that_changes_its_input_is_followed(flat: FlatModule) -> None:
    with precision.computing(flat, "bf16", ("float32", "float32")) as cast, torch.no_grad():
        usual = cast(*inputs())
    with precision.computing(flat, "bf16", ("float32", "float32"), ("inplace",)) as cast, torch.no_grad():
        assert all(map(torch.equal, cast(*inputs()), usual))  # relu and the sum round to the same


def test_casting_in_place_keeps_the_layer(flat: FlatModule) -> None:
    cast = precision.cast(copy.deepcopy(flat), "fp16", ("float32", "float32"), ("branches",))
    found: list[torch.dtype] = []
    branches = cast.get_submodule("flat.model.branches.layer")
    branches.register_forward_hook(lambda module, args, output: found.extend((args[0].dtype, output.dtype)))
    outputs = cast(*inputs())
    assert found == [torch.float32] * 2
    assert [one.dtype for one in outputs] == [torch.float32] * 2


@pytest.mark.parametrize(
    ("kept", "cause", "remedy"),
    [
        ("nrm", "the model has no layer nrm that could be kept in float", "did you mean norm?"),
        (
            "unused",
            "the layer to keep in float, unused, is never called: the module around it",
            "name a layer that",
        ),
    ],
)
def test_a_layer_that_cannot_be_kept_is_refused(flat: FlatModule, kept: str, cause: str, remedy: str) -> None:
    with (
        pytest.raises(ExportError) as raised,
        precision.computing(flat, "bf16", ("float32", "float32"), (kept,)) as cast,
    ):
        kept_layers.require_crossed(cast, (kept,), inputs())
    assert str(raised.value).startswith(cause)
    assert raised.value.remedy.startswith(remedy)
    assert all(tensor.dtype == torch.float32 for tensor in flat.parameters())


def test_torchscript_cannot_be_kept() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(8, 8)))
    flat = FlatModule(model, flatten_inputs(model, (torch.randn(2, 8),))).eval()
    with pytest.raises(ExportError, match="a part of a TorchScript program"):
        precision.cast(flat, "bf16", ("float32",), ("0",))


def test_a_model_that_is_refused_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), torch.jit.script(nn.Linear(8, 8)))
    flat, x = FlatModule(model, flatten_inputs(model, (torch.randn(2, 8),))).eval(), torch.randn(2, 8)
    before = flat(x)[0]
    with pytest.raises(ExportError), precision.computing(flat, "bf16", ("float32",), ("0", "1")):
        pass
    assert model[0](x).dtype == torch.float32
    assert torch.equal(flat(x)[0], before)


class Positions(nn.Module):
    """Returns positions in float32 in every precision, of which its caller needs all digits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[-1]).float() + 0 * self.weight.float()


class Waves(nn.Module):
    """Takes the sine of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions(x).sin()


def test_eager_that_a_kept_layer_makes_worse_is_no_measure() -> None:
    """Otherwise an artifact that is as wrong as eager would be called exact."""
    model, x = Waves(), torch.zeros(1, 1000)
    flat = FlatModule(model, flatten_inputs(model, (x,))).eval()
    exact = (flat(x)[0].detach(),)
    record = CaseRecord("x", 0)
    made = Golden((Case(record, (x,), exact, tuple(one.double() for one in exact)),), tolerances.FLOAT32)
    asked = {"bf16": tolerances.BY_PRECISION["bf16"]}
    for kept, worse in (((), False), (("positions",), True)):
        found, notes = make_golden.in_precisions(made, flat, asked, ("float32",), "cpu", kept)
        assert (not found["bf16"].eager, bool(notes)) == (worse, worse)


def test_a_layer_inside_torchs_encoder_is_called() -> None:
    torch.manual_seed(0)
    model = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval().requires_grad_(False)
    )
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    flat = FlatModule(model, flatten_inputs(model, {"src": x, "src_key_padding_mask": padding})).eval()
    with precision.computing(flat, "bf16", ("float32",), ("layers.1.linear1", "layers.0")) as cast, torch.no_grad():
        kept_layers.require_crossed(cast, ("layers.1.linear1", "layers.0"), (x, padding))
    assert model.use_nested_tensor
    assert model.layers[1].activation_relu_or_gelu
