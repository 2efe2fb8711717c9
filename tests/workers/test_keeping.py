"""The state of a loaded model: it is found in every call, dropped only if proven unused, and refused if hidden."""

from __future__ import annotations

import enum
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import rare, stateful
from torch import nn

from exporter import targets
from exporter.core import probing, time_limit, tolerances
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.evidence import make_golden
from exporter.model import flattening, recipes
from exporter.model.capture import export_program
from exporter.model.state import stateful as states
from exporter.model.state.snapshot import Snapshot, name
from exporter.workers import keeping, loading
from exporter.workers.messages import Job

RARE = Path(rare.__file__)


def job_of(recipe: str, folder: Path, file: Path = RARE) -> Job:
    source = recipes.find(f"{file}:{recipe}")
    return Job(source.label, source, folder, targets.Options(threads=1), weights="random")


def prepared(recipe: str, folder: Path, file: Path = RARE) -> tuple[loading.LoadedModel, Contract]:
    job = job_of(recipe, folder, file)
    loaded = loading.load_model(job)
    return loaded, keeping.find(job, loaded)


def test_state_that_changes_at_other_sizes_than_the_examples(tmp_path: Path) -> None:
    loaded, found = prepared("at_large_batches", tmp_path)
    assert loaded.kept.names == ("state.s",)
    assert found.state is not None
    assert [tensor.name for tensor in found.state.tensors] == ["s"]


def test_inputs_that_a_call_writes_to_are_named_once(tmp_path: Path) -> None:
    loaded, _ = prepared("in_place", tmp_path, RARE.with_name("tiny.py"))
    (warning,) = loaded.warnings
    assert warning.startswith("the model writes to its input x: an artifact may leave the caller's tensor as it is")


def test_state_that_one_size_writes_and_another_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"reads s \(.*rare.py:\d+\) at batch=1, but not at its example, batch=3"):
        prepared("of_two_modes", tmp_path)


def test_a_number_that_is_read_only_for_unusual_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"reads left \(.*rare.py:\d+\) at batch=3 zeros, but not at its example"):
        prepared("hangover_in_a_number", tmp_path)


def test_a_lack_of_memory_does_not_count_as_a_read(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="no room"):
        prepared("runs_out_of_memory_after_a_loud_input", tmp_path)


def test_a_call_that_does_not_return_from_what_another_left_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "LEAST_S", 1.0)
    with pytest.raises(ExportError, match=r"reads left \(.*rare.py:\d+\) at batch=3 zeros, but not at its example"):
        prepared("hangs_after_a_loud_input", tmp_path)


@pytest.mark.parametrize("recipe", ["table_that_grows", "average_that_nobody_reads", "scratch", "potential"])
def test_a_changing_tensor_that_cannot_affect_outputs_is_not_state(recipe: str, tmp_path: Path) -> None:
    loaded, found = prepared(recipe, tmp_path)
    assert found.state is None
    (warning,) = loaded.warnings
    assert re.search(r"rare.py:\d+.*so it is not state", warning)


def test_an_object_made_by_the_first_call_is_removed_as_a_whole(tmp_path: Path) -> None:
    loaded, found = prepared("plan", tmp_path)
    assert found.state is None
    example = loaded.inputs(loaded.base, 0)
    assert torch.equal(loaded.module(*example)[0], loaded.module(*example)[0])
    assert loaded.module.model.plan is None


def test_hooks_that_the_first_call_registers_are_kept(tmp_path: Path) -> None:
    loaded, found = prepared("hooks_from_the_first_call", tmp_path)
    assert found.state is None
    assert [spec.name for spec in found.outputs] == ["output0", "output1"]
    assert loaded.kept.hooked
    example = loaded.inputs(loaded.base, 0)
    for _ in range(2):
        outputs = loaded.module(*example)
        torch.testing.assert_close(outputs[0], outputs[1].relu())
    states.save(loaded.kept, job_of("hooks_from_the_first_call", tmp_path).state_file)
    again = loading.load_model(job_of("hooks_from_the_first_call", tmp_path))  # as a process that exports loads it
    assert again.module.model.ready
    torch.testing.assert_close(again.module(*example), outputs)


def test_each_process_makes_the_containers_of_the_first_call_itself(tmp_path: Path) -> None:
    job = job_of("containers_of_the_first_call", tmp_path, Path(stateful.__file__))
    loaded = loading.load_model(job)
    kept_state = keeping.find(job, loaded).state
    assert kept_state is not None
    assert {tensor.name for tensor in kept_state.tensors} == {"hx.0", "hx.1", "memory.h", "memory.most", "sums.0"}
    states.save(loaded.kept, job.state_file)
    again = loading.load_model(job)
    example = again.inputs(again.base, 0)
    carried = again.kept.initial
    own = loading._load_weights(again.recipe, "random").eval()
    for _ in range(3):
        with torch.no_grad():
            outputs, wanted = again.module(*example, *carried), own(*example)
        torch.testing.assert_close(outputs[:3], wanted)
        carried = outputs[3:]


def test_a_first_call_that_sets_up_more_than_hooks_is_undone_as_a_whole(tmp_path: Path) -> None:
    loaded, found = prepared("more_than_hooks_from_the_first_call", tmp_path)
    assert found.state is None
    assert not loaded.kept.hooked
    example = loaded.inputs(loaded.base, 0)
    outputs = loaded.module(*example)
    loaded.held.restore()
    torch.testing.assert_close(loaded.module(*example), outputs)


@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_a_draw_of_any_generator_is_seen(generator: type[Any]) -> None:
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(generator(0))
    try:
        before = keeping._generators()
        assert keeping._generators() == before
        np.random.rand()
        assert keeping._generators() != before
    finally:
        np.random.set_bit_generator(usual)


def test_a_hook_that_the_first_call_does_not_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"ready \(.*rare.py:\d+\)"):
        prepared("another_first_output", tmp_path)


def test_calls_in_which_the_model_fails_count_for_nothing(tmp_path: Path) -> None:
    loaded, _ = prepared("fails_at_large_values", tmp_path)
    far, zeros = torch.full((3, 4), 100.0), torch.zeros(3, 4)
    with pytest.raises(IndexError):
        loaded.module(far)
    keeping.require_known(loaded, "cpu", [("far", (far,)), ("zeros", (zeros,)), ("far again", (far,))])
    assert not hasattr(loaded.module.model, "calm")


def test_a_tensor_read_only_for_some_values_is_state(tmp_path: Path) -> None:
    loaded, _ = prepared("average_that_large_values_read", tmp_path)
    assert loaded.kept.names == ("state.s",)


@pytest.mark.parametrize("recipe", ["alternating", "in_numpy"])
def test_hidden_state_is_refused_even_if_it_alternates(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"different outputs for equal calls.*an iterator or a NumPy array"):
        prepared(recipe, tmp_path)


def test_a_rare_draw_of_pythons_random_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "DRAWN_S", 600.0)
    random.seed(0)
    with pytest.raises(ExportError, match="draws random numbers without torch"):
        prepared("draws_rarely", tmp_path)


def test_a_draw_that_does_not_matter_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "DRAWN_S", 600.0)
    loaded, _ = prepared("draws_in_vain", tmp_path)
    assert loaded.warnings == [
        "the model draws random numbers from Python or NumPy; 200 calls returned the same, and artifacts keep what one "
        "call drew"
    ]


def test_state_that_first_changes_in_the_golden_is_refused(tmp_path: Path) -> None:
    loaded, _ = prepared("at_large_values", tmp_path)
    data = loaded.inputs({"batch": 3}, 0)
    keeping.require_known(loaded, "cpu", [("batch=3", data)])
    with pytest.raises(ExportError, match=r"changes s \(.*rare.py:\d+\) at batch=3 large, but not at its example"):
        keeping.require_known(loaded, "cpu", [("batch=3 large", tuple(100 * t for t in data))])


def exported(model: nn.Module, batch: int) -> Any:
    x = torch.randn(batch, 4)
    flat = flattening.FlatModule(model.eval().requires_grad_(False), flattening.flatten_inputs(model, x)).eval()
    specs = (TensorSpec("x", "float32", (batch, 4)),)
    return export_program(flat, (x,), Contract("m", specs, specs, {}))


class Changing(nn.Module):
    """A parameter that is changed through views."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.gain.view(2, 2).chunk(2)[0].mul_(0.9)
        return x * self.gain


class ChangingAConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.copy_(x[0])
        return x * self.last


class ChangingACopy(nn.Module):
    """An in-place change of a copy, which the model does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mask.to(x.dtype).mul_(2)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (rare.at_large_batches.model, r"changes s \(.*rare.py:\d+\)"),
        (Changing, r"changes gain \(.*test_keeping.py:\d+\)"),
        (ChangingAConstant, r"changes last \(.*test_keeping.py:\d+\)"),
    ],
)
def test_an_exported_program_that_changes_unknown_state_is_refused(model: type[nn.Module], said: str) -> None:
    with pytest.raises(ExportError, match=f"the exported program {said}"):
        exported(model(), 6)


def test_an_exported_program_that_does_not_change_the_model() -> None:
    exported(rare.at_large_batches.model(), 4)
    exported(ChangingACopy(), 4)


class Kind(enum.Enum):
    KEYS = 1


@dataclass(slots=True)
class Slots:
    kept: torch.Tensor


@dataclass(slots=True, frozen=True)
class Frozen:
    kept: torch.Tensor


def test_a_snapshot_covers_slots_and_keys_of_any_type() -> None:
    model = nn.Module()
    model.slots, model.frozen = Slots(torch.zeros(1)), Frozen(torch.zeros(1))  # type: ignore[assignment]
    model.kept = {None: torch.zeros(1), torch.float32: torch.zeros(1), Kind.KEYS: torch.zeros(1)}  # type: ignore[assignment]
    held = Snapshot(model)
    model.slots.kept = torch.ones(1)  # type: ignore[assignment]
    model.frozen.kept.add_(1)  # type: ignore[operator, union-attr]
    for key in (None, torch.float32, Kind.KEYS):
        model.kept[key] = torch.ones(1)  # type: ignore[index, operator]
    assert [name(path) for path in held.changes()] == [
        *("slots.kept", "frozen.kept", "kept.None", "kept.torch.float32", "kept.Kind.KEYS"),
    ]
    held.restore()
    assert held.changes() == {}


def test_the_golden_reports_state_that_first_changes_in_it(tmp_path: Path) -> None:
    loaded, _ = prepared("at_large_values", tmp_path)
    plan = make_golden.Plan(probing.probe_plan(loaded.base, {}), {})
    make_golden.make(loaded.module, loaded.inputs, plan, tolerances.of_outputs(()), "cpu")
    assert [name(path) for path in loaded.strange()] == ["s"]
