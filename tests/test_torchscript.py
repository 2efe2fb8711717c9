"""The bridge from an exported program to TorchScript, and loading what came of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from exporter import capture, torchscript
from exporter.capture import FlatModule, flatten_inputs
from exporter.errors import ArtifactError, ExportError
from exporter.records import Contract, Range, TensorSpec

# torch.jit.script complains of an annotation in torch.fx.GraphModule, which is not ours.
pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")


def bridged(model: torch.nn.Module, *shape: int | str) -> torch.jit.ScriptModule:
    """The model with a dynamic batch, through torch.export, as TorchScript."""
    example = torch.ones(*(2 if dim == "batch" else dim for dim in shape))
    module = FlatModule(model, flatten_inputs(model, (example,))).eval()
    contract = Contract("m", (TensorSpec("x", "float32", shape),), (), {"batch": Range(1, 16)})
    return torchscript.from_exported(capture.export_program(module, (example,), contract))


class Buffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x) * self.scale + self.hidden + self.constant
        return y, y.reshape(x.shape[0] * 2, -1)


def test_shapes_stay_dynamic_and_buffers_travel(tmp_path: Path) -> None:
    model = Buffers().eval()
    torch.jit.save(bridged(model, "batch", 4), str(tmp_path / "m.pt"))
    run = torchscript.load(tmp_path / "m.pt", "cpu")
    for batch in (1, 2, 7, 16):
        x = torch.randn(batch, 4)
        got, want = run((x,)), model(x)
        assert [g.shape for g in got] == [w.shape for w in want]
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


class Checked(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] <= 16)
        torch._check(x.shape[0] * 2 >= 2)
        assert x.shape[1] == 4
        return x.reshape(-1, 2)


def test_assertions_are_left_to_the_contract() -> None:
    scripted = bridged(Checked(), "batch", 4)
    assert scripted(torch.ones(5, 4))[0].shape == (10, 2)


class Cond(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_a_higher_order_operator_is_refused_by_name() -> None:
    with pytest.raises(ExportError, match="TorchScript has no cond") as raised:
        bridged(Cond(), "batch", 4)
    assert "torch.jit.script" in raised.value.remedy


class Scripted(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> object:
        if self.kind == "one":
            return x
        return [x, x] if self.kind == "list" else (x, x, x)


@pytest.mark.parametrize(("kind", "count"), [("one", 1), ("tuple", 3)])
def test_every_kind_of_output_becomes_a_tuple(tmp_path: Path, kind: str, count: int) -> None:
    traced = torch.jit.trace(Scripted(kind), torch.ones(1))
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    outputs = torchscript.load(tmp_path / "m.pt", "cpu")((torch.ones(3),))
    assert isinstance(outputs, tuple)
    assert len(outputs) == count


def test_a_list_of_outputs_becomes_a_tuple(tmp_path: Path) -> None:
    traced = torch.jit.trace(Scripted("list"), torch.ones(1), strict=False)
    torch.jit.save(traced, str(tmp_path / "m.pt"))
    assert isinstance(torchscript.load(tmp_path / "m.pt", "cpu")((torch.ones(3),)), tuple)


def test_what_is_not_torchscript(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match=r"m\.pt is not TorchScript"):
        torchscript.load(tmp_path / "m.pt", "cpu")
    with pytest.raises(ArtifactError):
        torchscript.load(tmp_path / "missing.pt", "cpu")


class Bakes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


def test_tracer_warnings_name_their_line_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.jit.trace(Bakes(), torch.ones(1), check_trace=False)
        warnings.warn("something else", stacklevel=1)
    (said,) = torchscript.tracer_warnings(caught)
    assert "test_torchscript.py:" in said
    assert "something else" not in said
