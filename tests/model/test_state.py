"""State: finding it, naming it, taking it out of a model and putting it back."""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import stateful
from support.commands import Run
from torch import nn

import exporter
from exporter.core import contract
from exporter.core.contract_records import Contract, KeptState, StateTensor, TensorSpec, Values
from exporter.core.errors import ContractError, ExportError
from exporter.core.size_range import Range
from exporter.evidence import eager
from exporter.evidence.sequences import Calls
from exporter.model import flattening
from exporter.model.state import carrying, contrary, flow, independence, search, snapshot
from exporter.model.state import stateful as states
from exporter.model.state.snapshot import Form, Snapshot
from exporter.model.state.stateful import State, StatefulModule
from exporter.model.tensors import Tensors
from exporter.workers import loading


def found(recipe: Any) -> tuple[nn.Module, flattening.FlatInputs, Snapshot, State | None]:
    model = recipe.load("random").eval().requires_grad_(False)
    example = flattening.flatten_inputs(model, recipe.inputs())
    flat, held = flattening.FlatModule(model, example), Snapshot(model)
    given = []
    for seed in range(search.CALLS):
        torch.manual_seed(seed)
        given.append(flattening.flatten_inputs(model, recipe.inputs()).tensors)

    def step(number: int) -> Tensors:
        torch.manual_seed(number)
        return eager.run(flat, given[number], "cpu")

    return model, example, held, search.find(model, held, step)


@pytest.mark.parametrize(
    ("recipe", "names", "initial"),
    [
        (stateful.conv_streaming, ("state.context",), [0.0]),
        (stateful.lstm, ("state.h", "state.c"), [0.0, 0.0]),
        (stateful.gru, ("state.h",), [0.0]),
        (stateful.ring, ("state.ring", "state.at"), [0.0, 0]),
        (stateful.counter, ("state.count",), [0]),
        (stateful.cache, ("state.k", "state.v", "state.position"), [0.0, 0.0, 0]),
        (stateful.of_batch, ("state.h",), [0.0]),  # None before the first call
        (stateful.reassigned, ("state.state",), [0.5]),
        (stateful.in_a_list, ("state.past.0", "state.past.1"), [0.0, 0.0]),
        (stateful.in_one_tensor_thrice, ("state.past.1", "state.past.2"), [0.0, 0.0]),
        (stateful.made_at_the_first_call, ("state.cache",), [0.0]),
        (stateful.randomness, ("state.seed",), [12345]),
        (stateful.nested, ("state.first.context", "state.second.mean", "state.second.square"), [0.0, 0.0, 1.0]),
        (stateful.answers_its_state, ("state.sum",), [0.0]),
        (stateful.long_echo, ("state.line",), [0.0]),
        (stateful.long_queue, tuple(f"state.past.{index}" for index in range(12)), [0.0] * 12),
        (stateful.rare_event, ("state.hit",), [False]),
        (stateful.noise_floor, ("state.noise", "state.mean"), [pytest.approx(0.001), 0.0]),
        (stateful.hangover, ("state.left",), [0]),
        (stateful.hangover_in_an_attribute, ("state.left",), [4]),
        (stateful.keyed_by_tuple, ("state.cache.0.k",), [0.0]),
        (stateful.every_tenth_in_a_tensor, ("state.calls",), [0]),
        (
            stateful.containers_of_the_first_call,
            ("state.hx.0", "state.hx.1", "state.memory.h", "state.memory.most", "state.sums.0"),
            [0.0] * 5,
        ),
    ],
)
def test_state_is_found_wherever_it_is_kept(recipe: Any, names: tuple[str, ...], initial: list[float]) -> None:
    _, _, _, kept = found(recipe)
    assert kept is not None
    assert kept.names == names
    assert [tensor.unique().tolist() for tensor in kept.initial] == [[value] for value in initial]


def test_a_device_recorded_by_the_first_call_is_that_of_the_state() -> None:
    model, _, _, kept = found(stateful.made_at_the_first_call)
    assert kept is not None
    moved = tuple(tensor.to("meta") for tensor in kept.initial)
    with states.holding(model, kept, moved):
        assert model.device == torch.device("meta")
    assert not hasattr(model, "device")


def test_a_model_that_draws_random_numbers_has_no_state() -> None:
    assert found(stateful.draws)[3] is None


def test_a_value_that_nothing_reads_is_not_state() -> None:
    model, _, _, kept = found(stateful.only_remembers)
    assert kept is not None
    assert kept.paths == ()
    assert [snapshot.name(path) for path in kept.dropped] == ["calls", "last", "ramp"]
    assert "a call writes to calls (" in search.unread(model, kept)
    _, _, _, kept = found(stateful.logs)
    assert kept is not None
    assert kept.paths == ()


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        (stateful.averages_for_nobody, {"mean", "attention"}),
        (stateful.normalizes_in_training, {"running_mean", "running_var", "num_batches_tracked"}),
    ],
)
def test_a_value_that_is_updated_for_no_output_is_not_state(recipe: Any, names: set[str]) -> None:
    model, example, _, kept = found(recipe)
    assert kept is not None
    function = StatefulModule(model, example, kept).eval()
    kept = kept.without(independence.unread(function, example.tensors + kept.initial, kept))
    assert (kept.paths, {snapshot.name(path) for path in kept.dropped}) == ((), names)


def assigned(model: Any, x: torch.Tensor) -> None:
    model.t = model.t.clone()


def limited(model: Any, x: torch.Tensor) -> None:
    model.t.clamp_(min=0)


def rarely_set(model: Any, x: torch.Tensor) -> None:
    model.t = torch.where(x.max() > 100, 5.0, model.t)


def rarely_set_by_chance(model: Any, x: torch.Tensor) -> None:
    model.t = torch.where(torch.rand(()) > 1, 5.0, model.t)


def rarely_set_by_a_branch(model: Any, x: torch.Tensor) -> None:
    model.t = torch.full((1,), 5.0) if x.max() > 100 else model.t.clone()


@pytest.mark.parametrize(
    ("update", "kept_names", "dropped"),
    [
        (assigned, (), ["t"]),
        (limited, (), ["t"]),
        (rarely_set, ("state.t",), []),
        (rarely_set_by_chance, ("state.t",), []),
        (rarely_set_by_a_branch, ("state.t",), []),
    ],
)
def test_a_tensor_that_calls_write_with_the_same_value_is_a_constant(
    update: Any, kept_names: tuple[str, ...], dropped: list[str]
) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t = torch.ones(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            update(self, x)
            return x * self.t

    class recipe:
        load = staticmethod(lambda weights: Scaled())
        inputs = staticmethod(lambda: torch.randn(2, 4))

    _, _, _, kept = found(recipe)
    assert kept is not None
    assert (kept.names, [snapshot.name(path) for path in kept.dropped]) == (kept_names, dropped)


OUTPUT, HELD, OTHER = "an output", "held", "other"


def where(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held = torch.where(x > -1000, 4.0, model.held)
    return model.held * 2


def through_another(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.other.copy_(model.held)
    model.held.fill_(3)
    return x * 2


def overwritten(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held.copy_(x)
    return model.held * 2


def overwritten_in_part(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[1:] = x[1:]
    return model.held[1:] * 2


def read_where_not_overwritten(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[1:] = x[1:]
    return model.held[:2] * 2


def written_in_part(model: Any, x: torch.Tensor) -> torch.Tensor:
    work = torch.zeros(4)
    work[:2] = model.held[:2]
    return work[2:] + x[2:]


def read_where_written_in_part(model: Any, x: torch.Tensor) -> torch.Tensor:
    work = torch.zeros(4)
    work[:2] = model.held[:2]
    return work[1:3] + x[2:]


def in_another_dtype(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model.held.view(torch.int32)[:1] + x.int()


def only_its_form(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros_like(model.held) + model.held.new_ones(4)


def in_a_number(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + float(model.held[0])


def in_an_array(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(model.held.numpy() * 2)


def in_an_array_of_a_result(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(np.asarray(model.held + 1))


def in_a_list(model: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(model.held.tolist())


def given_to_out(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, model.held, out=torch.empty(4))


def overwritten_as_out(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, 2, out=model.held)


def in_a_sparse_tensor(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(torch.diag(model.held).to_sparse(), x[:, None])


def in_a_branch(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > -1000, lambda x, held: x + 1, lambda x, held: x + held, (x, model.held))


def asserts(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held.copy_(torch.maximum(model.held, x))
    assert torch.isfinite(model.held).all()
    return x * 2


def asserts_a_number(model: Any, x: torch.Tensor) -> torch.Tensor:
    assert model.held.sum().item() < 1e6, "large"
    return x * 2


def asserts_in_an_operator(model: Any, x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(torch.isfinite(model.held).all())
    return x * 2


def raises(model: Any, x: torch.Tensor) -> torch.Tensor:
    if (model.held > 1e6).any():
        raise ValueError("large")
    return x * 2


def catches_what_it_raises(model: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        assert (model.held < 1e6).all()
    except AssertionError:
        return x
    return x * 2


def chooses(model: Any, x: torch.Tensor) -> torch.Tensor:
    if (model.held > 1e6).any():
        return x
    return x * 2


def normalizes(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(x.expand(3, 4).cumsum(0), model.held, model.other, training=True)


def normalizes_by_what_it_holds(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(x.expand(3, 4), model.held, model.other, training=False)


@pytest.mark.parametrize(
    ("forward", "ends"),
    [
        (where, {OUTPUT, HELD}),
        (through_another, {OTHER}),
        (overwritten, set()),
        (overwritten_in_part, {HELD}),
        (read_where_not_overwritten, {OUTPUT, HELD}),
        (written_in_part, {HELD}),
        (read_where_written_in_part, {OUTPUT, HELD}),
        (in_another_dtype, {OUTPUT, HELD}),
        (only_its_form, {HELD}),
        (in_a_number, {OUTPUT, HELD}),
        (in_an_array, {OUTPUT, HELD}),
        (in_an_array_of_a_result, {OUTPUT, HELD}),
        (in_a_list, {OUTPUT, HELD}),
        (given_to_out, {OUTPUT, HELD}),
        (overwritten_as_out, set()),
        (in_a_sparse_tensor, {OUTPUT, HELD}),
        (in_a_branch, {OUTPUT, HELD}),
        (asserts, {HELD}),
        (asserts_a_number, {HELD}),
        (asserts_in_an_operator, {HELD}),
        (raises, {HELD}),
        (catches_what_it_raises, {OUTPUT, HELD}),
        (chooses, {OUTPUT, HELD}),
        (normalizes, {HELD}),
        (normalizes_by_what_it_holds, {OUTPUT, HELD}),
    ],
)
def test_what_a_call_computes_from_a_held_tensor(forward: Any, ends: set[str]) -> None:
    class Following(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(self, x)  # type: ignore[no-any-return]

    model = Following()
    model.held, model.other = torch.zeros(4), torch.ones(4)  # type: ignore[assignment]
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, torch.zeros(4)))
    places = {HELD: (("vars", HELD),), OTHER: (("vars", OTHER),)}
    reached = flow.between(model, places.values(), lambda number: flat(torch.randn(4)), range(1))
    assert reached[places[HELD]] == {places.get(end) for end in ends}


def writes_rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[:4] = x
    return x * 2


def reads_the_rows_it_wrote(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[:4] = x
    return model.held[:4] * 2


def reads_more_rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[:4] = x
    return model.held[:5] * 2


def adds_to_the_rows_it_wrote(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[:4] = x
    model.held[2:6].add_(model.held[6:10])
    return model.held[:4] * 2


def overwrites_a_part_of_a_storage(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.held[:512].copy_(x)
    model.held = model.held[:512]
    return model.held * 2


@pytest.mark.parametrize(
    ("forward", "ends"),
    [
        (overwritten, set()),
        (overwrites_a_part_of_a_storage, set()),
        (writes_rows, {HELD}),
        (reads_the_rows_it_wrote, {HELD}),
        (reads_more_rows, {OUTPUT, HELD}),
        (adds_to_the_rows_it_wrote, {OUTPUT, HELD}),
    ],
)
def test_what_a_call_computes_from_a_large_tensor(forward: Any, ends: set[str]) -> None:
    model = nn.Module()
    width = flow.PRECISE // 1024 + 1
    model.held = torch.zeros(1024, width)  # type: ignore[assignment]
    place = (("vars", HELD),)
    reached = flow.between(model, [place], lambda number: (forward(model, torch.randn(width)),), range(1))
    assert reached[place] == {{HELD: place, OUTPUT: None}[end] for end in ends}


def test_only_values_that_no_change_showed_to_matter_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = []
    between = flow.between

    def noted(module: nn.Module, places: Any, *args: Any) -> flow.Reached:
        followed.extend(map(snapshot.name, places))
        return between(module, places, *args)

    monkeypatch.setattr(flow, "between", noted)
    _, _, _, kept = found(stateful.noise_floor)
    assert kept is not None
    assert "noise" in kept.names[0]
    assert followed == []
    found(stateful.averages_for_nobody)
    assert set(followed) == {"mean", "attention"}


def test_what_a_model_computes_that_cannot_be_followed_may_reach_an_output() -> None:
    class Unfollowed(stateful.hangover.model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch._C._len_torch_dispatch_stack():
                raise RuntimeError("another mode is active")
            return super().forward(x)

    class recipe(stateful.hangover):
        model = Unfollowed

    _, _, _, kept = found(recipe)
    assert kept is not None
    assert kept.names == ("state.left",)


@pytest.mark.parametrize(("first", "last"), [(0, 4), (1, 3)])
def test_state_that_shares_memory_is_refused(first: int, last: int) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(4)
            self.register_buffer("one", whole)
            self.register_buffer("other", whole if first == 0 else whole[first:last])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.one.add_(x.mean())
            return x.mean() + self.other

    class recipe(stateful._Recipe):
        model = Shared

    with pytest.raises(ExportError, match="keeps state that shares its memory with other, in one"):
        found(recipe)


def test_complex_state_is_wide_in_the_reference() -> None:
    class Rotating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.polar(torch.ones(3), torch.tensor([0.1, 0.2, 0.3])))
            self.register_buffer("z", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.z.copy_(self.z * self.turn + x)
            return self.z + 0

    class recipe(stateful._Recipe):
        model = Rotating
        inputs = staticmethod(lambda: torch.randn(3))

    model, example, held, kept = found(recipe)
    assert kept is not None
    calls = Calls(StatefulModule(model, example, kept).eval(), held, outside=False)
    given = [(recipe.inputs(),) for _ in range(8)]
    ((*_, (last,)),), wide = calls.references([given], [calls.run(given, "cpu")])
    exact, turn = torch.zeros(3, dtype=torch.complex128), model.turn.to(torch.complex128)
    for (x,) in given:
        exact = exact * turn + x
    assert wide
    torch.testing.assert_close(last, exact, rtol=1e-12, atol=1e-12)


def test_a_sparse_tensor_cannot_be_state() -> None:
    class Fading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("graph", torch.eye(4).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.graph = self.graph * 0.5
            return self.graph @ x[:, :4].T

    class recipe(stateful._Recipe):
        model = Fading

    with pytest.raises(ExportError, match="keeps state in a sparse tensor, graph"):
        found(recipe)


@pytest.mark.parametrize(
    ("recipe", "said", "code"),
    [
        (stateful.counts_in_python, "state that is not a tensor (1, 2, 3, …), in calls", "self.calls += 1"),
        (stateful.late_switch, "different outputs after more calls, because it counts in calls", "self.calls += 1"),
        (stateful.every_tenth, "different outputs after more calls, because it counts in calls", "self.calls += 1"),
        (stateful.late_mode, "different outputs after more calls, because it counts in calls", "self.calls += 1"),
        (stateful.long_list, "state that does not exist after every call, in seen.1", "self.seen.append(x.mean())"),
        (stateful.grows, "state that does not exist after every call, in past.1", "self.past.append(x.mean())"),
        (
            stateful.hangover_made_at_the_first_call,
            "behaves differently in its first call, because of left",
            "self.left = torch.where(loud, 4, (left - 1).clamp(min=0))",
        ),
        (stateful.changes_a_parameter, "changes its parameter gain", "self.gain.mul_(0.9)"),
    ],
)
def test_state_that_cannot_be_carried_is_refused_by_name_and_line(recipe: Any, said: str, code: str) -> None:
    with pytest.raises(ExportError) as raised:
        found(recipe)
    assert said in str(raised.value)
    assert raised.value.remedy
    file, _, line = str(raised.value).rpartition("(")[2].rstrip(")").rpartition(":")
    assert Path(file).read_text().splitlines()[int(line) - 1].strip() == code


def test_rows_that_a_layer_renormalizes_have_a_remedy_that_is_possible() -> None:
    with pytest.raises(
        ExportError, match=r"renormalizes \(max_norm\) in each call its parameter table\.weight"
    ) as raised:
        found(stateful.renormalizes)
    assert "max_norm to None" in raised.value.remedy


class GrowingCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.past = torch.zeros(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x[:1, :1]])
        return x + self.past.sum()


class FirstCallDiffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.mean(0) if self.mean is None else 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (GrowingCache, r"size changes from call to call \(\[2, 1\], \[3, 1\], \[4, 1\], …\), in past \("),
        (FirstCallDiffers, r"behaves differently in its first call, because of mean \("),
    ],
)
def test_state_without_a_fixed_form_is_refused(model: type[nn.Module], said: str) -> None:
    class recipe(stateful._Recipe):
        inputs = staticmethod(lambda: torch.randn(2, 3))

    recipe.model = model
    with pytest.raises(ExportError, match=said):
        found(recipe)


@pytest.mark.parametrize("dim", [None, "past+seq", "(past+seq)//2"])
def test_state_of_a_size_that_depends_on_several_is_refused(dim: str | None) -> None:
    specs = [TensorSpec("state.cache", "float32", (dim, 2))]
    with pytest.raises(ExportError, match=r"state\.cache has a size that the inputs' sizes do not determine"):
        loading._kept_state(None, None, specs)


def test_a_script_cannot_carry_state_of_the_size_of_a_sum() -> None:
    tensor = StateTensor("cache", "float32", ("past+seq",), 0.0)
    inputs = (TensorSpec("x", "float32", ("seq",)), TensorSpec("mask", "float32", ("past+seq",)))
    promised = Contract(
        "m", inputs, (), {"past": Range(1, 8), "seq": Range(1, 8)}, state=KeptState("inside", (tensor,))
    )
    with pytest.raises(ExportError, match=r"the size past\+seq, which no input determines"):
        carrying._size("past+seq", tensor, promised)
    with pytest.raises(ExportError, match=r"the size past\+seq, but") as raised:
        carrying.fixed_initial(promised)
    assert "--dynamic without past and seq" in raised.value.remedy


@pytest.mark.parametrize("recipe", [stateful.nested, stateful.in_a_list, stateful.of_batch, stateful.ring])
def test_the_function_equals_the_model_and_does_not_change_it(recipe: Any) -> None:
    model, example, held, kept = found(recipe)
    assert kept is not None
    function = StatefulModule(model, example, kept).eval()
    own, carried = recipe.load("random").eval(), kept.initial
    for _ in range(4):
        x = recipe.inputs()
        with torch.no_grad():
            got, wanted = function(x.clone(), *carried), own(x.clone())
        carried = got[len(got) - len(carried) :]
        torch.testing.assert_close(got[0], wanted[0] if isinstance(wanted, tuple) else wanted)
        assert not held.changes()


def test_given_and_returned_state_share_no_memory_with_other_tensors() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.last.clone()
            self.last = x
            return before + self.last

    path = (("vars", "_buffers"), ("item", "last"))
    model, x, given = Last(), torch.ones(3), torch.zeros(3)
    function = StatefulModule(model, flattening.flatten_inputs(model, (x,)), State((path,), (given,)))
    output, following = function(x, given)
    for other in (x, output, given):
        other.fill_(7)
    assert following.tolist() == [1, 1, 1]
    assert model.last.tolist() == [0, 0, 0]


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Both:
    a: torch.Tensor
    b: torch.Tensor
    scale: float = 0.5


def in_a_tuple(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = model.kept or (x * 0, x * 0)
    model.kept = (a * 0.5 + x, b + a)
    return model.kept


def in_a_named_tuple(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = model.kept or (x * 0, x * 0)
    model.kept = Pair(a * 0.5 + x, b + a)
    return model.kept.a, model.kept.b


def in_a_dataclass(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = model.kept or Both(x * 0, x * 0)
    model.kept = Both(before.a * before.scale + x, before.b + before.a)
    return model.kept.a, model.kept.b


def in_place_in_a_list(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if model.kept is None:
        model.kept = [x * 0, x * 0]
    model.kept[1] = model.kept[1] + model.kept[0]
    model.kept[0] = model.kept[0] * 0.5 + x
    return model.kept[0], model.kept[1]


def in_a_tuple_in_the_own_list(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not model.layers:
        model.layers.append((x * 0, x * 0))
    a, b = model.layers[0]
    model.layers[0] = (a * 0.5 + x, b + a)
    return model.layers[0]


def in_a_dict_in_the_own_dict(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    held = model.named.setdefault("layer", {"a": x * 0, "b": x * 0})
    held["b"] = held["b"] + held["a"]
    held["a"] = held["a"] * 0.5 + x
    return held["a"], held["b"]


def beside_a_part_of_the_model(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, part = model.kept or (x * 0, x * 0, model.part)
    model.kept = (a * 0.5 + part(x), b + a, part)
    return model.kept[0], model.kept[1]


def beside_an_item_that_nothing_reads(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, most = model.kept or (x * 0, x * 0, x.new_zeros(()))
    model.kept = (a * 0.5 + x, b + a, torch.maximum(most, x.amax().clamp(max=0.1)))
    return model.kept[:2]


@pytest.mark.parametrize(
    "update",
    [
        in_a_tuple, in_a_named_tuple, in_a_dataclass, in_place_in_a_list, in_a_tuple_in_the_own_list,
        in_a_dict_in_the_own_dict, beside_a_part_of_the_model, beside_an_item_that_nothing_reads,
    ],
)  # fmt: skip
def test_state_in_a_container_that_the_first_call_makes_is_carried(update: Any) -> None:
    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(4, 4)
            self.kept: Any = None
            self.layers: list[Any] = []
            self.named: dict[str, Any] = {}

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = update(self, x)
            return a + 0, b + 0

    class recipe(stateful._Recipe):
        model = Making
        inputs = staticmethod(lambda: torch.randn(2, 4))

    model, example, held, kept = found(recipe)
    assert kept is not None
    function = StatefulModule(model, example, kept).eval()
    for own in (recipe.load("random").eval(), recipe.load("random").eval()):  # twice: a call leaves nothing behind
        carried = kept.initial
        for _ in range(4):
            x = recipe.inputs()
            with torch.no_grad():
                got = function(x.clone(), *carried)
                torch.testing.assert_close(got[:2], own(x.clone()), rtol=0, atol=0)
            carried = got[2:]
            assert not held.changes()
    assert (model.kept, model.layers, model.named) == (None, [], {})


def test_an_object_of_the_first_call_that_cannot_be_copied_is_refused() -> None:
    class Locked:
        def __init__(self, total: torch.Tensor) -> None:
            self.total, self.lock = total, threading.Lock()

    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept: Locked | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = Locked(x.new_zeros(()))
            self.kept.total = self.kept.total + x.sum()
            return x + self.kept.total

    class recipe(stateful._Recipe):
        model = Making

    with pytest.raises(ExportError, match=r"an object in its first call that cannot be copied \(TypeError\), for kept"):
        found(recipe)


def test_only_the_place_that_begins_with_another_computation_is_named() -> None:
    with pytest.raises(ExportError) as raised:
        found(stateful.average_from_the_first_input)
    said = str(raised.value)
    assert said.startswith("the model behaves differently in its first call, because of average (")
    assert "hx" not in said
    assert "calls" not in said
    assert "torch.where(calls == 0, FIRST, LATER)" in raised.value.remedy
    _, _, _, kept = found(stateful.average_chosen_by_a_counter)  # what the remedy says
    assert kept is not None
    assert set(kept.names) == {"state.hx.0", "state.hx.1", "state.calls", "state.average"}


def test_a_flag_that_changes_the_first_call_is_named_alone() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.started = False
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, self.started = not self.started, True
            self.total = self.total + x.sum()
            return x * 2 if first else x + self.total

    class recipe(stateful._Recipe):
        model = Flagged

    with pytest.raises(ExportError, match=r"in its first call, because of started \([^)]*\)$"):
        found(recipe)


class Holder:
    def __init__(self) -> None:
        self.tensor, self.more = torch.zeros(2), {"deep": [torch.zeros(1)]}


class Everywhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(2)
        self.pair, self.queue = Pair(torch.zeros(1), 3), collections.deque([torch.zeros(1)], maxlen=2)
        self.holder, self.text, self.none = Holder(), "a", None
        self.itself = self  # a cycle

    def change(self) -> None:
        self.inner.running_mean.add_(1)
        self.inner.running_var = torch.full((2,), 9.0)
        self.pair = Pair(torch.ones(1), 4)
        self.queue.append(torch.ones(1))
        self.holder.tensor += 1
        self.holder.more["deep"][0] = torch.ones(1)
        self.holder.more["new"] = 1
        self.text, self.none, self.added = "b", torch.ones(1), 5


def test_a_snapshot_finds_and_reverts_every_change() -> None:
    model = Everywhere()
    mean = model.inner.running_mean
    held = Snapshot(model)
    assert held.changes() == {}
    model.change()
    names = {snapshot.name(path) for path in held.changes()}
    assert names >= {
        "inner.running_mean", "inner.running_var", "pair.0", "pair.1", "queue.1", "holder.tensor",
        "holder.more.deep.0", "holder.more.new", "text", "none", "added",
    }  # fmt: skip
    held.restore()
    assert held.changes() == {}
    assert model.inner.running_mean is mean
    assert (model.text, model.none, len(model.queue), type(model.pair)) == ("a", None, 1, Pair)
    assert not hasattr(model, "added")
    assert model.holder.more.keys() == {"deep"}


def test_a_snapshot_restores_in_another_form_and_back() -> None:
    model = Everywhere()
    held = Snapshot(model)
    held.restore(Form(torch.float64))
    assert model.inner.running_mean.dtype == model.holder.tensor.dtype == torch.float64
    assert model.inner.num_batches_tracked.dtype == torch.int64
    model.change()
    held.restore()
    assert model.inner.running_mean.dtype == torch.float32
    assert held.changes() == {}


def test_a_snapshot_covers_attributes_of_torchscript() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.mean = 0, torch.zeros(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            self.mean = self.mean + x
            return self.mean * self.n

    model = torch.jit.script(Counts())
    held = Snapshot(model)
    model(torch.ones(2))
    assert {snapshot.name(path): str(value) for path, value in held.changes().items()} == {
        "mean": "tensor([1., 1.])",
        "n": "1",
    }
    held.restore()
    assert held.changes() == {}
    assert model(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3),
        torch.full((2, 3), 0.1, dtype=torch.float16),
        torch.arange(6).reshape(2, 3),
        torch.tensor([[True, False, True]]).expand(2, 3),
        torch.full((2, 3), float("nan")),
        torch.full((2, 3), 1 + 2j),
        torch.full((2, 3), 2**62),
        torch.randn(2, 3, dtype=torch.bfloat16),
    ],
)
def test_an_initial_value_survives_the_contract(tensor: torch.Tensor) -> None:
    dtype = flattening.dtype_name(tensor.dtype)
    recorded = StateTensor("h", dtype, (2, 3), states.recorded(tensor, (2, 3)))
    again = states.initial(recorded).expand(2, 3)
    torch.testing.assert_close(again, tensor, rtol=0, atol=0, equal_nan=True)


def test_an_initial_value_is_broadcast_along_dynamic_sizes() -> None:
    rows = torch.arange(3.0).expand(4, 3)
    recorded = states.recorded(rows, ("batch", 3))
    assert isinstance(recorded, Values)
    assert recorded.shape == (1, 3)
    with pytest.raises(ExportError, match="varies along a dimension whose size follows"):
        states.recorded(torch.arange(12.0).reshape(4, 3), ("batch", 3))


def test_the_contract_of_the_function() -> None:
    x, h = TensorSpec("x", "float32", ("batch", 4)), StateTensor("h", "float32", ("batch", 6), 0)
    inside = Contract("m", (x,), (x,), {"batch": Range(1, 4)}, state=KeptState("inside", (h,)))
    outside = contract.as_function(inside)
    assert [spec.name for spec in outside.inputs] == [spec.name for spec in outside.outputs] == ["x", "state.h"]
    assert contract.keeps_state(inside)
    assert not contract.keeps_state(outside)
    assert contract.as_function(outside) == outside
    assert contract.output_names(outside) == ["x.next", "state.h.next"]
    with pytest.raises(ValueError, match=r"state\.h has a dimension rows, which has no range"):
        dataclasses.replace(inside, state=KeptState("inside", (dataclasses.replace(h, shape=("rows",)),)))


def test_the_reference_carries_its_own_state_in_float64() -> None:
    model, example, held, kept = found(stateful.reassigned)
    assert kept is not None
    calls = Calls(StatefulModule(model, example, kept), held, outside=True)
    given = [(stateful.reassigned.inputs(),) for _ in range(5)]
    outputs = calls.run(given, "cpu")
    (references,), is_wide = calls.references([given], [outputs])
    assert is_wide
    assert [t.dtype for t in references[-1]] == [torch.float64, torch.float64]
    assert [t.dtype for t in outputs[-1]] == [torch.float32, torch.float32]
    for got, reference in zip(outputs, references, strict=True):
        torch.testing.assert_close(got[1].double(), reference[1], rtol=1e-5, atol=1e-6)
        assert not torch.equal(got[1].double(), reference[1])
    assert held.changes() == {}


def test_an_artifact_that_carries_state_is_not_copied(run: Run) -> None:
    """A deep copy failed at the lock inside: cannot pickle '_thread.lock' object."""
    _, place = run("stateful:counter", "trace", bench=False, state="carry")
    artifact = exporter.open_artifact(place / "trace.pt")
    assert copy.copy(artifact) is artifact
    with pytest.raises(TypeError, match="an Artifact that carries state cannot be copied; open it again with open_"):
        copy.deepcopy(artifact)
    with pytest.raises(TypeError, match="an Artifact cannot be pickled"):
        pickle.dumps(artifact.stream())


@pytest.mark.parametrize(
    ("recipe", "made"),
    [(stateful.cache, "from the exported program"), (stateful.time_first, "by torch's older exporter")],
)
def test_state_as_inputs_of_an_onnx_model(run: Run, recipe: Any, made: str) -> None:
    """A graph output cannot have the name of an input, but the next state takes the place of the state."""
    manifest, place = run(f"stateful:{recipe.__name__}", "onnx", state="inputs")
    (row,) = manifest.variants
    assert row.status == "passed", row.reason
    assert any(made in note for note in row.notes)
    assert row.artifact is not None
    stream = exporter.open_artifact(place / row.artifact.path).stream()
    own = recipe.load("random").eval()
    for seed in range(5):
        torch.manual_seed(seed)
        x = recipe.inputs()
        with torch.no_grad():
            torch.testing.assert_close(stream(x)["output"], own(x.clone()), rtol=1e-4, atol=1e-5)


def test_trying_an_artifact_keeps_its_program_in_the_initial_state() -> None:
    """Otherwise, an artifact packaged later would start where the trial ended."""
    model, example, _, kept = found(stateful.counter)
    assert kept is not None
    promised = Contract(
        "counter",
        (TensorSpec("x", "float32", (2, 4)),),
        (TensorSpec("output", "float32", (2, 4)),),
        {},
        state=KeptState("inside", (StateTensor("count", "int64", (1,), 0),)),
    )
    inside = carrying.module(StatefulModule(model, example, kept).eval(), promised, "cpu")
    given = tuple(torch.ones(tuple(t.shape)) for t in example.tensors)
    program = torch.export.export(inside, given)
    before = {name: tensor.clone() for name, tensor in program.state_dict.items()}
    assert not carrying.repeats(lambda inputs: (torch.zeros(1),), program, given)
    calls = iter(range(9))
    fresh = carrying.module(StatefulModule(model, example, kept).eval(), promised, "cpu")
    assert carrying.repeats(lambda inputs: (next(calls), fresh(*inputs))[1], program, given)
    assert next(calls) == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in program.state_dict.items())


def test_tensors_passed_on_unchanged_are_computed() -> None:
    """Otherwise, Inductor would read them from a buffer that has already been overwritten."""
    model, example, _, kept = found(stateful.delay)
    assert kept is not None
    frame, turned = TensorSpec("last", "float32", (1, 24)), TensorSpec("before", "float32", (24, 1))
    state_tensors = tuple(StateTensor(one.name, one.dtype, one.shape, 0.0) for one in (frame, turned))
    promised = Contract("delay", (frame,), (frame, frame), {}, state=KeptState("inside", state_tensors))
    function, given = StatefulModule(model, example, kept).eval(), (torch.ones(1, 24),)
    program = torch.export.export(carrying.module(function, promised, "cpu"), given)
    passed = carrying.passed_on(program)
    assert passed == {0, 1, 3}  # both outputs and the new `before`; the new `last` is the input
    again = torch.export.export(carrying.module(function, promised, "cpu", passed), given)
    assert carrying.passed_on(again) == set()
    one, other = program.module(), again.module()
    assert all(torch.equal(a, b) for x in torch.randn(3, 1, 24) for a, b in zip(one(x), other(x), strict=True))


def test_a_graph_that_refuses_eval_carries_its_state() -> None:
    """Graphs from torch.export raise NotImplementedError at train() and eval(), as a model in int8 does."""

    class Graph(torch.nn.Module):
        def train(self, mode: bool = True) -> Graph:
            raise NotImplementedError

        def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + total, x + total

    kept = KeptState("inside", (StateTensor("total", "float32", (2,), 0.0),))
    made = carrying.module(Graph(), Contract("net", (), (), {}, state=kept), "cpu")
    assert not made.training
    assert [made(torch.ones(2))[0].tolist() for _ in range(2)] == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float16, torch.complex64])
def test_a_computed_tensor_is_bit_identical(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, -0.0, 1.0, 3.0]).to(dtype)
    computed = carrying._computed(tensor)
    assert computed.dtype == dtype
    assert torch.equal(tensor.view(torch.uint8), computed.view(torch.uint8))


def test_a_number_compares_differently_a_limited_number_of_times() -> None:
    for value in (3, 3.0):
        number = contrary.of(value)
        assert number != value
        assert number + 1 == value + 1
        assert not (number - 1) % 10
        rounds = 0
        while number > 10:
            rounds += 1
        assert rounds < contrary.MOST
        assert number == value
        assert number + 1 == value + 1


def test_a_trace_refuses_a_branch_on_the_state(run: Run) -> None:
    """The golden makes too few calls to reach the other side. Checks that raise are not branches."""
    manifest, _ = run("stateful:branches_on_its_state", "trace")
    (row,) = manifest.variants
    line = inspect.getsourcelines(stateful.branches_on_its_state.model.forward)[1] + 3
    assert row.status == "failed"
    assert f"Python reads the values of the state ({stateful.__file__}:{line}), but a trace keeps" in row.reason


def test_a_complex_state_is_refused_only_by_onnx(run: Run) -> None:
    manifest, _ = run("stateful:turns", "trace,onnx", state="inputs")
    trace, onnx = manifest.variants
    assert trace.status == "passed", trace.reason
    assert "state.phase is complex64" in onnx.reason
    assert "view_as_real" in onnx.remedy


def test_a_stream_enforces_the_contract() -> None:
    h = StateTensor("h", "float32", ("batch", 3), 0.0)
    x = TensorSpec("x", "float32", ("batch", 3))
    inside = Contract("m", (x,), (x,), {"batch": Range(1, 8)}, state=KeptState("inside", (h,)))
    for promised in (inside, contract.as_function(inside)):
        run = carrying.Carried(lambda given: (given[0] + given[1], given[1] + 1), promised)
        stream = exporter.Artifact(promised, run, "cpu", run.reset).stream()
        for wrong, said in (
            (torch.ones(2), "x: 1 dimensions"),
            (torch.ones(2, 3).double(), "float64"),
            ([1.0], "x is list, not a tensor"),
            (torch.ones(9, 3), "batch is 9"),
        ):
            with pytest.raises(ContractError, match=said):
                stream(wrong)
        for call in range(3):
            assert float(stream(torch.ones(2, 3))["x"][0, 0]) == 1 + call
        with pytest.raises(ContractError, match=r"state\.h has batch 2, but the inputs have 3: call reset"):
            stream(torch.ones(3, 3))
        assert float(stream(torch.ones(2, 3))["x"][0, 0]) == 4, "the refused call must not change the state"
        stream.reset()
        assert stream(torch.ones(3, 3))["x"].shape == (3, 3)
