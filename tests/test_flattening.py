"""From any inputs and outputs to flat named tensors."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from exporter import flattening
from exporter.errors import ExportError, RecipeError
from exporter.flattening import flatten_inputs, output_leaves
from exporter.records import Contract, TensorSpec
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


def test_constants_that_a_contract_can_hold() -> None:
    given = {"x": ONE, "a": 2.5, "b": True, "c": None, "d": float("inf"), "g": -1.7e308, "e": torch.float16, "f": -7}
    found = flattening.constants(flatten_inputs(Model(), given))
    assert found == {"a": 2.5, "b": True, "d": "inf", "g": "-1.7e+308", "e": "torch.float16", "f": -7}
    contract = Contract("m", (), (), {}, constants=found)
    assert from_json(Contract, to_json(contract)) == contract
