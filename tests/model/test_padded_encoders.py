"""nn.TransformerEncoder with padding, in captures and traces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, flattening, padded_encoders

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning"),
]
FULL = torch.zeros(2, 5, dtype=torch.bool)
AT_THE_END = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
INSIDE = torch.tensor([[False, True, False, False, True], [False] * 4 + [True]])
A_WHOLE_ROW = torch.tensor([[True] * 5, [False] * 4 + [True]])
PADDINGS = (FULL, AT_THE_END, INSIDE, A_WHOLE_ROW)


class Encoder(nn.Module):
    """An encoder whose outputs are used at every position."""

    def __init__(self, heads: int = 2, norm: bool = True) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, heads, 16, batch_first=True)
        packs = heads % 2 == 0
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8) if norm else None, enable_nested_tensor=packs)
        if norm:
            nn.init.normal_(self.encoder.norm.bias)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


def captured(model: nn.Module, x: torch.Tensor, padding: torch.Tensor, strict: bool = False) -> object:
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, {"x": x, "padding": padding})).eval()
    specs = TensorSpec("x", "float32", ("batch", "length", 8)), TensorSpec("padding", "bool", ("batch", "length"))
    ranges = {"batch": Range(1, 8), "length": Range(1, 16)}
    program = capture.capture(flat, (x, padding), Contract("encoder", specs, (), ranges), strict).program.module()
    return lambda *given: program(*given)[0]


def strictly_captured(model: nn.Module, x: torch.Tensor, padding: torch.Tensor) -> object:
    return captured(model, x, padding, strict=True)


def traced(model: nn.Module, x: torch.Tensor, padding: torch.Tensor) -> object:
    with padded_encoders.zeroed(), torch.no_grad():
        return torch.jit.trace(model, (x, padding), check_trace=False)


@pytest.mark.parametrize("make", [captured, strictly_captured, traced])
@pytest.mark.parametrize("example", [FULL, AT_THE_END, INSIDE])
@pytest.mark.parametrize("norm", [True, False])
def test_outputs_are_those_of_eager_with_any_padding(make, example: torch.Tensor, norm: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(norm=norm).eval()
    run = make(model, torch.randn(2, 5, 8), example)
    for x, padding in [*((torch.randn(2, 5, 8), one) for one in PADDINGS), (torch.randn(3, 7, 8), longer())]:
        with torch.no_grad():
            torch.testing.assert_close(run(x, padding), model(x, padding), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [captured, traced])
def test_nan_at_padded_positions_reaches_no_other(make) -> None:
    model, x = Encoder().eval(), torch.randn(2, 5, 8)
    run = make(model, x, FULL)
    x[AT_THE_END] = float("nan")
    with torch.no_grad():
        expected = model(x, AT_THE_END)
        torch.testing.assert_close(run(x, AT_THE_END), expected, atol=1e-5, rtol=1e-4)
    assert expected.isfinite().all()


def longer() -> torch.Tensor:
    return torch.arange(7) >= torch.tensor([[7], [4], [1]])


def test_padded_positions_differ_without_it() -> None:
    """Shows that the test above can fail."""
    torch.manual_seed(0)
    model, x = Encoder().eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        program = torch.export.export(model, (x, FULL), strict=False).module()
        assert (program(x, AT_THE_END) - model(x, AT_THE_END)).abs().max() > 0.1


def test_float_masks() -> None:
    """If the rows are packed, any value but 0 is padding."""
    torch.manual_seed(0)
    model, x = Encoder().eval(), torch.randn(2, 5, 8)
    run = captured_float(model, x)
    for mask in (torch.zeros(2, 5), AT_THE_END * -1.0, torch.zeros(2, 5).masked_fill(INSIDE, float("-inf"))):
        with torch.no_grad():
            torch.testing.assert_close(run(x, mask), model(x, mask), atol=1e-5, rtol=1e-4)


def captured_float(model: nn.Module, x: torch.Tensor) -> torch.nn.Module:
    with padded_encoders.zeroed(), torch.no_grad():
        return torch.export.export(model, (x, torch.zeros(2, 5)), strict=False).module()


class WithGradients(Encoder):
    """Records gradients, so that eager does not pack the rows."""

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return self.encoder(x, src_key_padding_mask=padding).detach()


class WithAMask(Encoder):
    """Masks positions too, so that eager does not pack the rows."""

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, torch.eye(x.shape[1], dtype=torch.bool).roll(1, 0), padding)


@pytest.mark.parametrize("make", [lambda: Encoder(heads=1), WithGradients, WithAMask])
def test_encoders_that_do_not_pack(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(2, 5, 8)
    run = traced(model, x, FULL)
    with torch.no_grad():
        expected = model(x, AT_THE_END)
        torch.testing.assert_close(run(x, AT_THE_END), expected, atol=1e-5, rtol=1e-4)
    assert expected[0, 3:].abs().min() > 0


def test_the_encoder_is_unchanged_afterwards() -> None:
    usual = nn.TransformerEncoder.forward
    with padded_encoders.zeroed():
        assert nn.TransformerEncoder.forward is not usual
    assert nn.TransformerEncoder.forward is usual
