"""Where torch.export fixed a dimension, by line."""

from __future__ import annotations

import inspect
import logging
import math
import operator

import pytest
import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, fixed_dims, flattening, recurrent

SYMBOLS = {"batch": Range(1, 16), "sequence": Range(1, 64)}


class Loop(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        for i in range(x.shape[1]):
            state = 0.9 * state + x[:, i]
        return state


class Batch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * operator.index(x.shape[0])


def export(module: torch.nn.Module) -> tuple[torch.export.ExportedProgram, list[str]]:
    example = (torch.randn(2, 7, 8),)
    flat = flattening.FlatModule(module, flattening.flatten_inputs(module, example)).eval()
    contract = Contract("m", (TensorSpec("x", "float32", ("batch", "sequence", 8)),), (), SYMBOLS)
    captured = capture.capture(flat, example, contract)
    return captured.program, list(map(str, captured.fixed))


def line_of(module: type[torch.nn.Module], text: str) -> str:
    lines, start = inspect.getsourcelines(module)
    return f"{__file__}:{start + next(i for i, line in enumerate(lines) if text in line)}"


def test_a_loop_fixes_one_dimension_and_the_other_stays_dynamic() -> None:
    program, notes = export(Loop())
    assert notes == [f"torch.export fixed sequence at 7 ({line_of(Loop, 'for i in')})"]
    assert program.module()(torch.ones(1, 7, 8))[0].shape == (1, 8)
    assert program.module()(torch.ones(16, 7, 8))[0].shape == (16, 8)


class Diagonal(torch.nn.Module):
    """torch.diag_embed does not accept a dynamic offset."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[..., 0]
        full = 32 * math.ceil(x.shape[1] / 32)
        x = torch.nn.functional.pad(x, (0, full - x.shape[1]))
        return torch.diag_embed(x, full)


def test_the_line_of_an_operator_that_makes_a_size_a_number() -> None:
    example = (torch.randn(2, 40, 1),)
    flat = flattening.FlatModule(Diagonal(), flattening.flatten_inputs(Diagonal(), example)).eval()
    symbols = {"batch": Range(2, 4), "samples": Range(33, 400)}
    contract = Contract("m", (TensorSpec("x", "float32", ("batch", "samples", 1)),), (), symbols)
    fixed = capture.capture(flat, example, contract).fixed
    assert f"torch.export fixed 32*ceil(samples/32) at 64 ({line_of(Diagonal, 'diag_embed(')})" in map(str, fixed)


def test_the_line_of_a_size_converted_to_a_number() -> None:
    program, notes = export(Batch())
    assert notes == [f"torch.export fixed batch at 2 ({line_of(Batch, 'index(')})"]
    assert program.module()(torch.ones(2, 33, 8))[0].shape == (2, 33, 8)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_a_layer_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "OPERATORS", ())  # which exporter otherwise keeps dynamic
    _, (note, *_) = export(torch.nn.RNN(8, 4, batch_first=True))
    assert note.startswith("torch.export fixed sequence at 7 (")
    assert "nn/modules/rnn.py:" in note


def test_nothing_is_fixed() -> None:
    assert export(torch.nn.Linear(8, 4))[1] == []


def test_the_log_settings_are_restored() -> None:
    logger = logging.getLogger(fixed_dims.LOGGER)
    before = (logger.level, logger.propagate, list(logger.handlers))
    export(Loop())
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_sum_that_is_fixed_names_its_sizes() -> None:
    dims = {"x": "new", "memory": "past", "mask": "new+past"}
    specs = tuple(TensorSpec(name, "float32", (2, dim)) for name, dim in dims.items())
    contract = Contract("m", specs, (), {"new": Range(1, 16), "past": Range(1, 64)})
    found = fixed_dims.Specializations("capture")
    found.dimensions[2, 1] = (8, "model.py:3")
    found._symbols = {"s0": (0, 1), "s1": (1, 1), "s2": (2, 1)}
    found._sizes = {"s0": 3, "s1": 5, "s2": 8}
    assert found.symbols(contract) == {"new", "past"}
    (limit,) = found.fixed(contract)
    assert (limit.symbols, str(limit)) == (("new", "past"), "torch.export fixed new+past at 8 (model.py:3)")
    found._guards = {"Eq(s2, s0 + s1)": "right.py:1", "s2 >= 7": "model.py:2"}
    assert found.place(contract, "new", 1) == "model.py:2", "the sum moves with its parts"
    assert found.place(contract, "new", 2) == ""


@pytest.mark.parametrize("places", [("model.py:3", ""), ("", "model.py:3")])
def test_a_size_of_two_inputs_is_named_once_with_its_line(places: tuple[str, str]) -> None:
    inputs = tuple(TensorSpec(name, "float32", ("batch", "sequence")) for name in "xy")
    found = fixed_dims.Specializations("capture")
    found.dimensions = {(index, 1): (7, place) for index, place in enumerate(places)}
    found.dimensions[0, 0] = (2, "")
    said = {str(one) for one in found.fixed(Contract("m", inputs, (), SYMBOLS))}
    assert said == {"torch.export fixed sequence at 7 (model.py:3)", "torch.export fixed batch at 2"}
