"""Recurrent layers keep a dynamic sequence length."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, flattening, recurrent

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights")


class Recurrent(torch.nn.Module):
    def __init__(self, kind: Callable[..., torch.nn.Module], **options: Any) -> None:
        super().__init__()
        self.layers = kind(4, 6, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, states = self.layers(x)
        return (y, *states) if isinstance(states, tuple) else (y, states)


def exported(model: torch.nn.Module) -> torch.export.ExportedProgram:
    contract = Contract(
        "recurrent",
        inputs=(TensorSpec("x", "float32", ("length", "batch", 4)),),
        outputs=(TensorSpec("y", "float32", ("length", "batch", None)),),
        symbols={"length": Range(1, 50), "batch": Range(1, 9)},
    )
    example = (torch.randn(5, 2, 4),)
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, example)).eval()
    return capture.export_program(flat, example, contract)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_the_exported_program_accepts_any_length(kind: Callable[..., torch.nn.Module], options: dict[str, Any]) -> None:
    model = Recurrent(kind, **options).eval()
    program = exported(model).module()
    for length, batch in ((1, 1), (9, 3), (5, 2)):
        x = torch.randn(length, batch, 4)
        for got, expected in zip(program(x), model(x), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_the_length_stays_dynamic_in_a_program_with_state(kind: Callable[..., torch.nn.Module]) -> None:
    class Streaming(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = kind(4, 6)
            self.register_buffer(
                "state_0", torch.zeros(1, 1, 6)
            )  # named like the buffers of artifacts that carry state

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
            held = self.get_buffer("state_0")
            first = held.clone()
            y, following = self.layers(*inputs, first if kind is torch.nn.GRU else (first, first))
            held.copy_(following if kind is torch.nn.GRU else following[0])
            return (y,)

    contract = Contract(
        "streaming",
        inputs=(TensorSpec("x", "float32", ("length", 1, 4)),),
        outputs=(TensorSpec("y", "float32", ("length", 1, 6)),),
        symbols={"length": Range(1, 50)},
    )
    program = capture.export_program(Streaming().eval(), (torch.randn(5, 1, 4),), contract)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    assert torch.export.load(saved).module()(torch.randn(9, 1, 4))[0].shape == (9, 1, 6)


def test_layers_with_projections() -> None:
    model = Recurrent(torch.nn.LSTM, proj_size=3).eval()
    x = torch.randn(9, 3, 4)
    assert [tuple(t.shape) for t in exported(model).module()(x)] == [(9, 3, 3), (1, 3, 3), (1, 3, 6)]


def test_fake_shapes_equal_real_shapes() -> None:
    model = Recurrent(torch.nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)
    arguments = (torch.randn(3, 5, 4), list(torch.zeros(2, 4, 3, 6)), list(model.layers.parameters()))
    rest = (True, 2, 0.0, False, True, True)
    shapes = [tuple(t.shape) for t in recurrent._shapes(*arguments, *rest)]
    assert shapes == [tuple(t.shape) for t in torch.ops.aten.lstm.input(*arguments, *rest)]


@pytest.mark.filterwarnings("ignore:_check_is_size will be", "ignore:The .grad attribute of a")  # torch's, to itself
@pytest.mark.parametrize("options", [{"nonlinearity": "relu", "bias": False}, {"bidirectional": True}])
def test_a_plain_layer_computes_the_same_in_a_loop(options: dict[str, Any]) -> None:
    model = Recurrent(torch.nn.RNN, **options).eval()
    program = exported(model)
    with recurrent.looped(), torch.no_grad():
        expanded = program.run_decompositions()
        x = torch.randn(9, 3, 4)
        assert any("while_loop" in str(node.target) for node in expanded.graph.nodes)
        for got, wanted in zip(expanded.module()(x), model(x), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.filterwarnings("ignore:_check_is_size will be", "ignore:The .grad attribute of a")
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_compiled_length_stays_symbolic(kind: Callable[..., torch.nn.Module]) -> None:
    program = exported(Recurrent(kind).eval())
    with recurrent.looped(), torch.no_grad():
        graph = program.run_decompositions().graph
    assert any("while_loop" in str(node.target) for node in graph.nodes)
    x = [node for node in graph.nodes if node.op == "placeholder"][-1]
    assert not isinstance(x.meta["val"].shape[0], int)


def test_torch_is_restored() -> None:
    op = recurrent.OPERATORS[0]
    kernels = dict(op.py_kernels)
    for change in (recurrent.kept, recurrent.looped):
        with contextlib.suppress(KeyError), change():
            assert op.py_kernels != kernels
            raise KeyError
        assert op.py_kernels == kernels
