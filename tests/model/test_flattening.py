"""Flattening any inputs and outputs to named tensors."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch.utils import _pytree as pytree

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError, RecipeError, UsageError
from exporter.core.json_codec import from_json, to_json
from exporter.model import flattening, tensors
from exporter.model.flattening import flatten_inputs, output_leaves

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


def test_flattening_and_rebuilding() -> None:
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
    """A type that pytree does not know."""


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONE, ("output",)),
        ((ONE, TWO), ("output0", "output1")),
        ({"logits": ONE, "hidden": [ONE, TWO]}, ("logits", "hidden.0", "hidden.1")),
        ({"logits": ONE, "loss": None, "steps": 3}, ("logits", "steps")),
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
    """A cache like those of transformers or of user code."""

    def __init__(self) -> None:
        self.ssm_states = [ONE, TWO]
        self.offset, self._hidden = 3, ONE


def test_objects_that_hold_tensors() -> None:
    names, tensors = output_leaves({"logits": TWO, "cache": Cache()})
    assert names == ("logits", "cache.ssm_states.0", "cache.ssm_states.1")
    assert [t is w for t, w in zip(tensors, (TWO, ONE, TWO), strict=True)] == [True] * 3


def all_tensors(value: Any, seen: set[int]) -> set[int]:
    """Return every reachable tensor, found without the code under test."""
    if isinstance(value, torch.Tensor):
        return {id(value)}
    if id(value) in seen:
        return set()
    seen.add(id(value))
    inner = list(value.values()) if isinstance(value, dict) else list(getattr(value, "__dict__", {}).values())
    inner += value if isinstance(value, (list, tuple)) else []
    return {found for item in inner for found in all_tensors(item, seen)}


def test_every_tensor_of_transformers_cache_layers_is_kept() -> None:
    from transformers import cache_utils

    kinds = {**cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "fp8": cache_utils.Fp8QuantizedLayer}
    kinds.pop("dummy")
    static = {f"static {name}": kind for name, kind in cache_utils.STATIC_LAYER_TYPE_MAPPING.items()}
    states = torch.ones(2, 1, 3, 4)
    static.pop("static dummy")
    for name, kind in (kinds | static).items():
        layer: Any = kind() if name == "fp8" else kind(max_cache_len=8, sliding_window=2)
        if hasattr(layer, "keys"):
            layer.update(states, states + 1)
        if hasattr(layer, "update_conv_state"):
            layer.update_conv_state(states[0])
            layer.update_recurrent_state(states)
        if hasattr(layer, "update_indexer") and not name.startswith("static"):
            layer.update_indexer(states[0])
        cache = cache_utils.Cache(layers=[layer, cache_utils.DummyLayer()])
        names, tensors = output_leaves({"logits": ONE, "past": cache})
        window = {id(getattr(layer, "_sliding_window_tensor", None))}
        assert {id(t) for t in tensors} == (all_tensors(cache, set()) | {id(ONE)}) - window, (name, names)
        given = flatten_inputs(Takes(), {"past": cache})
        assert set(given.names) == set(names[1:])
        again = given.rebuild([t.float() + 1 for t in given.tensors])[1]["past"]
        assert type(again.layers[0]) is type(layer)
        assert again.layers[0] is not layer
        pairs = zip(output_leaves(again)[1], tensors[1:], strict=True)
        assert all(torch.equal(new, old.float() + 1) for new, old in pairs)


def test_a_cache_among_the_inputs_keeps_its_window() -> None:
    from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

    def past(length: int) -> Any:
        layer: Any = DynamicSlidingWindowLayer(sliding_window=4)
        layer.update(torch.ones(1, 1, length, 2), torch.ones(1, 1, length, 2))
        return {"past": Cache(layers=[layer])}

    short, long = (flatten_inputs(Takes(), past(length)) for length in (6, 9))
    assert short.rebuild(short.tensors)[1]["past"].get_seq_length() == 6
    assert short.tensors[0].shape == long.tensors[0].shape
    assert "cumulative_length" in long.difference(short)
    assert not short.difference(flatten_inputs(Takes(), past(6)))


def test_transformers_caches() -> None:
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


class Registered:
    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.hidden = (a, b)


@pytest.fixture
def _registered() -> Iterator[None]:
    pytree.register_pytree_node(Registered, lambda r: (list(r.hidden), None), lambda parts, _: Registered(*parts))
    yield
    pytree.SUPPORTED_NODES.pop(Registered)


@pytest.mark.usefixtures("_registered")
def test_a_registered_pytree_without_keys() -> None:
    names, tensors = output_leaves({"pair": Registered(ONE, TWO)})
    assert (names, tensors) == (("pair.0", "pair.1"), (ONE, TWO))
    given = flatten_inputs(Takes(), {"past": Registered(ONE, TWO)})
    assert given.names == ("past.0", "past.1")
    assert given.rebuild((TWO, ONE))[1]["past"].hidden == (TWO, ONE)


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    mode: str = "plain"


class Slotted:
    __slots__ = ("x",)


def test_objects_among_the_inputs() -> None:
    slotted = Slotted()
    slotted.x = ONE
    flat = flatten_inputs(Takes(), {"past": [Frozen(TWO), slotted], "mode": Odd()})
    assert flat.names == ("past.0.x", "past.1.x")
    assert flat.settings == {"past.0.mode": "plain"}
    assert list(flat.constants) == ["mode"]
    (frozen, other), mode = flat.rebuild((ONE, TWO))[1].values()
    assert (frozen, other.x, type(mode)) == (Frozen(ONE), TWO, Odd)
    assert slotted.x is ONE
    other_mode = flatten_inputs(Takes(), {"past": [Frozen(TWO, "odd"), slotted], "mode": Odd()})
    assert flat.difference(other_mode) == "past.0.mode"


def test_objects_that_contain_themselves() -> None:
    knot: Any = Cache()
    knot.me = {"again": knot}
    assert output_leaves({"a": knot})[0] == ("a.ssm_states.0", "a.ssm_states.1")
    with pytest.raises(RecipeError, match=r"past\.me\.again contains itself"):
        flatten_inputs(Takes(), {"past": knot})


@pytest.mark.parametrize("data", [numpy.zeros(2), {1, 2}, iter([ONE]), 1j, "x", b"x", torch.half, torch.device("cpu")])
def test_outputs_of_unsupported_types_are_refused_by_name(data: Any) -> None:
    with pytest.raises(ExportError, match=f"output extra.0 is of type {type(data).__name__}") as raised:
        output_leaves({"logits": ONE, "extra": [data]})
    assert "--leave-out extra.0" in raised.value.remedy
    assert output_leaves({"logits": ONE, "extra": [data]}, ["extra"])[0] == ("logits",)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about each of these
@pytest.mark.parametrize(
    ("make", "form"),
    [
        (lambda: torch.eye(2).to_sparse(), r"a sparse tensor \(torch.sparse_coo\)"),
        (lambda: torch.eye(2).to_sparse(layout=torch.sparse_csc), r"a sparse tensor \(torch.sparse_csc\)"),
        (lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8), "a quantized tensor"),
        (lambda: torch.nested.nested_tensor([ONE, TWO], layout=torch.jagged), "a nested tensor"),
    ],
    ids=["coo", "csc", "quantized", "nested"],
)
def test_only_dense_tensors_are_taken_and_returned(make: Callable[[], torch.Tensor], form: str) -> None:
    tensor = make()
    with pytest.raises(RecipeError, match=f"the input mask is {form}, and artifacts take only dense ones"):
        flatten_inputs(Model(), {"x": ONE, "mask": tensor})
    with pytest.raises(ExportError, match=f"the model's output graph is {form}") as raised:
        output_leaves({"logits": ONE, "graph": tensor})
    assert "--leave-out graph" in raised.value.remedy


@pytest.mark.parametrize(
    ("leave_out", "names"),
    [
        (["hidden"], ("logits", "cache.ssm_states.0", "cache.ssm_states.1")),
        (["hidden.1", "cache"], ("logits", "hidden.0")),
        (["cache.ssm_states.0"], ("logits", "hidden.0", "hidden.1", "cache.ssm_states.1")),
    ],
)
def test_leaving_out_outputs(leave_out: list[str], names: tuple[str, ...]) -> None:
    output = {"logits": ONE, "hidden": (ONE, TWO), "cache": Cache()}
    flattening.require_named(output, leave_out)
    assert output_leaves(output, leave_out)[0] == names
    assert output_leaves((ONE, TWO), ["output1"])[0] == ("output0",)


def test_two_outputs_of_one_name_are_refused() -> None:
    with pytest.raises(ExportError, match=r"the model's output loss\.box is there twice"):
        output_leaves({"loss.box": ONE, "loss": {"box": TWO, "class": ONE}})
    assert output_leaves({"loss.box": ONE, "loss": {"box": TWO}}, ["loss"])[0] == ("loss.box",)


def test_two_inputs_of_one_name_are_refused() -> None:
    for given in ({"a.b": ONE, "a": {"b": TWO}}, {"a": {"b": 3}, "a.b": ONE}):
        with pytest.raises(RecipeError, match=r"two inputs that are called a\.b"):
            flatten_inputs(torch.nn.Identity(), given)


def test_only_existing_outputs_can_be_left_out() -> None:
    with pytest.raises(UsageError, match="--leave-out past: the model has no output of that name") as raised:
        flattening.require_named({"logits": ONE, "loss": None, "cache": Cache()}, ["cache", "past"])
    assert raised.value.remedy == "it returns logits, cache"


class Constants(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return True, 3, 0.5, x + 1


class Returns(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"y": x + 1, "pair": (x, [2 * x]), "cache": Frozen(x)}


@pytest.mark.parametrize("strict", [True, False])
def test_torch_export_can_trace_the_flat_module(strict: bool) -> None:
    flat = flattening.FlatModule(Returns(), flatten_inputs(Returns(), TWO), ["pair.0"]).eval()
    program = torch.export.export(flat, (TWO,), strict=strict)
    assert [t.tolist() for t in program.module()(ONE + TWO)] == [[3, 3], [4, 4], [2, 2]]


def test_constants_in_objects_are_settings() -> None:
    cache = Cache()
    cache.about = {"name": "x", "dtype": torch.half, "window": ONE}  # type: ignore[attr-defined]
    assert output_leaves((ONE, cache))[0] == (
        *("output0", "output1.ssm_states.0", "output1.ssm_states.1", "output1.about.window"),
    )


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1 << 900])
def test_numbers_beyond_64_bits_are_refused_by_name(number: int) -> None:
    with pytest.raises(ExportError, match="output count is an integer beyond the 64 bits of a tensor") as raised:
        output_leaves({"logits": ONE, "count": number})
    assert "--leave-out count" in raised.value.remedy
    assert output_leaves({"logits": ONE, "count": number}, ["count"])[0] == ("logits",)


def test_a_trace_returns_numbers() -> None:
    flat = flattening.FlatModule(Constants(), flatten_inputs(Constants(), TWO)).eval()
    done, steps, ratio, _ = torch.jit.trace(flat, TWO)(TWO)
    assert (done.dtype, done.item(), steps.item(), ratio.item()) == (torch.bool, True, 3, 0.5)


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


def test_dtypes_have_torchs_names() -> None:
    specs = flattening.specs(["a", "b"], [torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros((), dtype=torch.bool)])
    assert specs == (TensorSpec("a", "bfloat16", (2, 3)), TensorSpec("b", "bool", ()))


def test_constants_that_a_contract_can_hold() -> None:
    given = {"x": ONE, "a": 2.5, "b": True, "c": None, "d": float("inf"), "g": -1.7e308, "e": torch.float16, "f": -7}
    found = flattening.constants(flatten_inputs(Model(), given))
    assert found == {"a": 2.5, "b": True, "d": "inf", "g": "-1.7e+308", "e": "torch.float16", "f": -7}
    contract = Contract("m", (), (), {}, constants=found)
    assert from_json(Contract, to_json(contract)) == contract


@pytest.mark.parametrize(
    "value", [range(3), types.MappingProxyType({"a": 1}), numpy.arange(4)], ids=["range", "proxy", "array"]
)
def test_values_that_cannot_be_rebuilt_are_constants(value: Any) -> None:
    given = [flatten_inputs(Takes(), {"past": [ONE], "how": value}) for _ in range(2)]
    assert list(given[0].constants) == ["how"]
    assert given[0].rebuild(given[0].tensors)[1]["how"] is value
    assert not given[0].difference(given[1])


def test_arrays_are_compared_by_their_values() -> None:
    one, other = (flatten_inputs(Takes(), {"past": [ONE], "how": numpy.arange(4) + n}) for n in (0, 1))
    assert one.difference(other) == "how"


def test_a_missing_constant_differs_from_none() -> None:
    one, other = flatten_inputs(Takes(), {"past": [ONE], "how": None}), flatten_inputs(Takes(), {"past": [ONE]})
    assert one.difference(other) == "how"
    assert other.difference(one) == "how"


class WithMetadata(torch.nn.Module):
    """Keeps more than tensors in its state dict, as neural operators do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(2, 3)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return super().state_dict(*args, **kwargs) | {"_metadata": {"in_channels": 2}}


def test_a_state_dict_may_hold_other_objects() -> None:
    assert [tuple(one.shape) for one in tensors.saved(WithMetadata())] == [(3, 2), (3,)]
