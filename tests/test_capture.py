"""From any inputs and outputs to flat named tensors, and one torch.export for all."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter import capture, eager, flattening
from exporter.capture import Program
from exporter.errors import ExportError, RecipeError
from exporter.flattening import FlatModule, flatten_inputs, output_leaves
from exporter.records import Contract, Range, TensorSpec
from exporter.serialization import from_json, to_json

ONE, TWO = torch.ones(1), torch.ones(2)


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0, extra: Any = None) -> torch.Tensor:
        y = x * scale
        if mask is not None:
            y = y * mask
        return y + (extra["a"] if extra else 0)


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (ONE, ("x",)),
        ((ONE,), ("x",)),
        ([ONE, TWO], ("x", "mask")),
        ((ONE, None), ("x",)),
        ({"mask": ONE, "x": TWO}, ("mask", "x")),
        ({"x": ONE, "scale": 2.0}, ("x",)),
        ({"x": ONE, "extra": {"a": TWO, "b": [ONE]}}, ("x", "extra.a", "extra.b.0")),
        ((ONE, ONE, ONE, ONE, ONE), ("x", "mask", "scale", "extra", "input4")),
        (collections.UserDict(x=ONE), ("x",)),
    ],
)
def test_names_of_inputs(inputs: Any, names: tuple[str, ...]) -> None:
    assert flatten_inputs(Model(), inputs).names == names


def test_taken_apart_and_put_together_again() -> None:
    flat = flatten_inputs(Model(), {"x": ONE, "scale": 3.0, "extra": {"a": TWO}})
    args, kwargs = flat.rebuild([torch.zeros(1), torch.zeros(2)])
    assert args == ()
    assert kwargs["scale"] == 3.0
    assert kwargs["x"].sum() == kwargs["extra"]["a"].sum() == 0


@pytest.mark.parametrize("inputs", [{}, (), {"x": 3}, {"x": None}, 42, "text", None])
def test_inputs_without_tensors(inputs: Any) -> None:
    with pytest.raises(RecipeError, match="inputs are of type"):
        flatten_inputs(Model(), inputs)


class Odd:
    """Nothing that pytree knows."""


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONE, ("output",)),
        ((ONE, TWO), ("output0", "output1")),
        ({"logits": ONE, "hidden": [ONE, TWO]}, ("logits", "hidden.0", "hidden.1")),
        ({"logits": ONE, "loss": None, "name": "x", "steps": 3}, ("logits", "steps")),
        (collections.namedtuple("Out", "a b")(ONE, TWO), ("a", "b")),
        ((Odd(), ONE), ("output1",)),
    ],
)
def test_names_of_outputs(output: Any, names: tuple[str, ...]) -> None:
    assert output_leaves(output)[0] == names


def test_a_model_output_of_transformers() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    assert output_leaves(BaseModelOutput(last_hidden_state=ONE, hidden_states=(ONE, TWO)))[0] == (
        *("last_hidden_state", "hidden_states.0", "hidden_states.1"),
    )


class Cache:
    """As transformers has them, and as somebody may have them."""

    def __init__(self) -> None:
        self.ssm_states = [ONE, TWO]
        self.offset, self._hidden = 3, ONE


def test_objects_that_hold_tensors() -> None:
    names, tensors = output_leaves({"logits": TWO, "cache": Cache()})
    assert names == ("logits", "cache.ssm_states.0", "cache.ssm_states.1")
    assert [t is w for t, w in zip(tensors, (TWO, ONE, TWO), strict=True)] == [True] * 3


def test_caches_of_transformers() -> None:
    from transformers import DynamicCache
    from transformers.cache_utils import EncoderDecoderCache

    cache = DynamicCache()
    cache.update(torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    assert output_leaves({"past": cache})[0] == ("past.0.key", "past.0.value")
    both = output_leaves({"past": EncoderDecoderCache(cache, DynamicCache())})
    assert both[0] == ("past.self_attention_cache.0.key", "past.self_attention_cache.0.value")
    given = flatten_inputs(Takes(), {"past": cache})
    assert given.names == ("past.0.key", "past.0.value")
    _, kwargs = given.rebuild([t + 1 for t in given.tensors])
    assert isinstance(kwargs["past"], DynamicCache)
    assert torch.equal(kwargs["past"].layers[0].values, torch.full((2, 1, 3, 4), 2.0))


class Takes(torch.nn.Module):
    def forward(self, past: Any) -> torch.Tensor: ...


def test_numbers_are_tensors_without_dimensions() -> None:
    names, (steps, ratio, done) = output_leaves((3, 0.5, True))
    assert names == ("output0", "output1", "output2")
    assert [t.shape for t in (steps, ratio, done)] == [()] * 3
    assert [t.dtype for t in (steps, ratio, done)] == [torch.int64, torch.float32, torch.bool]
    assert (steps.item(), ratio.item(), done.item()) == (3, 0.5, True)


@pytest.mark.parametrize("output", [None, "text", {}, {"a": Odd()}, Odd(), Odd])
def test_outputs_without_tensors(output: Any) -> None:
    with pytest.raises(ExportError, match="holds no tensor"):
        output_leaves(output)


def test_dtypes_by_torchs_names() -> None:
    specs = flattening.specs(["a", "b"], [torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros((), dtype=torch.bool)])
    assert specs == (TensorSpec("a", "bfloat16", (2, 3)), TensorSpec("b", "bool", ()))


def contract(*shape: Any, symbols: dict[str, Range] | None = None) -> Contract:
    ranges = {"batch": Range(1, 8)} if symbols is None else symbols
    return Contract("m", (TensorSpec("x", "float32", shape),), (), ranges)


def flat(model: torch.nn.Module, *example: torch.Tensor) -> FlatModule:
    return FlatModule(model, flatten_inputs(model, example)).eval()


def test_export_keeps_dimensions_dynamic() -> None:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    program = capture.export_program(module, (torch.ones(2, 4),), contract("batch", 4))
    run = program.module()
    for batch in (1, 2, 8):
        (y,) = run(torch.ones(batch, 4))
        assert y.shape == (batch, 2)


def test_a_size_that_may_not_move_stays_fixed() -> None:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    fixed = contract("batch", 4, symbols={"batch": Range(2, 2)})
    program = capture.export_program(module, (torch.ones(2, 4),), fixed)
    assert program.module()(torch.ones(2, 4))[0].shape == (2, 2)


def test_a_dimension_without_a_name_may_move() -> None:
    module = flat(torch.nn.ReLU(), torch.ones(2, 6))
    program = capture.export_program(module, (torch.ones(2, 6),), contract("batch", None))
    assert program.module()(torch.ones(3, 9))[0].shape == (3, 9)


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_what_torch_export_does_not_take_is_one_line() -> None:
    with pytest.raises(ExportError, match=r"^torch\.export: .") as raised:
        capture.export_program(flat(Branch(), torch.ones(2, 4)), (torch.ones(2, 4),), contract("batch", 4))
    assert "\n" not in str(raised.value)


def program(tmp_path: Path) -> Program:
    module = flat(torch.nn.Linear(4, 2), torch.ones(2, 4))
    return Program(contract("batch", 4), "cpu", lambda: module, lambda: (torch.ones(2, 4),), tmp_path / "exported.pt2")


def test_a_program_makes_things_once_and_only_when_asked(tmp_path: Path) -> None:
    made = program(tmp_path)
    assert made.loading_s == 0
    assert made.module is made.module
    spent = made.loading_s
    assert spent > 0
    assert made.example is made.example
    assert made.loading_s > spent
    assert not made.used_capture


def test_a_program_that_was_captured(tmp_path: Path) -> None:
    made = program(tmp_path)
    torch.export.save(capture.export_program(made.module, made.example, made.contract), made.exported_file)
    assert made.exported.module()(torch.ones(5, 4))[0].shape == (5, 2)
    assert made.used_capture


def test_a_program_that_was_not_captured_says_why(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="was not captured"):
        _ = program(tmp_path).exported
    (tmp_path / "exported.txt").write_text("torch.export: a branch on data")
    with pytest.raises(ExportError, match="a branch on data"):
        _ = program(tmp_path).exported


def test_derived_dimensions_survive_a_file(tmp_path: Path) -> None:
    """As torch loads it, the program cannot be decomposed, which ONNX needs."""
    example = (torch.ones(6, 4), torch.ones(2))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sum(0) * y.sum()

    promise = Contract(
        "m",
        (TensorSpec("x", "float32", ("3*batch", 4)), TensorSpec("y", "float32", ("batch",))),
        (),
        {"batch": Range(1, 8)},
    )
    torch.export.save(capture.export_program(flat(Model(), *example), example, promise), tmp_path / "program.pt2")
    module = capture.load_program(tmp_path / "program.pt2").run_decompositions().module()
    assert module(torch.ones(9, 4), torch.ones(3))[0].tolist() == [27.0] * 4


def test_constants_that_a_contract_can_hold() -> None:
    given = {"x": ONE, "a": 2.5, "b": True, "c": None, "d": float("inf"), "g": -1.7e308, "e": torch.float16, "f": -7}
    found = flattening.constants(flatten_inputs(Model(), given))
    assert found == {"a": 2.5, "b": True, "d": "inf", "g": "-1.7e+308", "e": "torch.float16", "f": -7}
    contract = Contract("m", (), (), {}, constants=found)
    assert from_json(Contract, to_json(contract)) == contract


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"x": torch.ones(2, 4)}, "arguments of the model's forward"),
        ({}, "arguments of the model's forward"),
        ({"input": torch.ones(2, 5)}, "promise only the sizes"),
    ],
)
def test_what_a_model_raises_has_a_remedy(arguments: dict[str, torch.Tensor], remedy: str) -> None:
    with pytest.raises(ExportError, match="the model fails at batch=2") as raised, eager.naming("batch=2"):
        torch.nn.Linear(4, 2)(**arguments)
    assert remedy in raised.value.remedy
