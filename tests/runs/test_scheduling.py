"""The model is loaded once, jobs that do not fit run in turn, and a memory shortage is explained with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.commands import Run, request_for

from exporter import targets
from exporter.core import memory
from exporter.core.records import VariantRecord
from exporter.model import mapped_program
from exporter.runs import memory_needs
from exporter.runs.memory_needs import GB, MemoryPlan
from exporter.runs.scheduling import Turns
from exporter.workers.children import Holder, Zygote
from exporter.workers.messages import Prepared


@pytest.fixture(autouse=True)
def _without_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that gets a line each time a model is loaded."""
    file = tmp_path / "loads"
    monkeypatch.setenv("LOADED", str(file))
    return file


def run_in_a_fresh_zygote(recipe: str, names: str, out: Path) -> dict[str, str]:
    from exporter.runs import pipeline

    manifest, _ = pipeline.run(request_for(recipe, out, names))
    return {variant.name: variant.status for variant in manifest.variants}


def test_the_model_is_loaded_once(loads: Path, tmp_path: Path) -> None:
    found = run_in_a_fresh_zygote("heavy:counted", "trace,script,export", tmp_path / "bundle")
    assert found == dict.fromkeys(("trace", "script", "export"), "passed")
    assert len(loads.read_text().splitlines()) == 1


def test_a_model_that_uses_scipy_is_loaded_once(loads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    monkeypatch.delenv("OMP_NUM_THREADS")  # which would keep OpenBLAS from starting threads too
    assert run_in_a_fresh_zygote("heavy:scientific", "trace", tmp_path / "bundle") == {"trace": "passed"}
    assert len(loads.read_text().splitlines()) == 1


def test_a_model_that_shows_a_progress_bar_is_loaded_once(loads: Path, tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    assert run_in_a_fresh_zygote("heavy:showing", "trace", tmp_path / "bundle") == {"trace": "passed"}
    assert len(loads.read_text().splitlines()) == 1


def test_a_model_that_starts_threads_is_loaded_by_each_job(loads: Path, tmp_path: Path) -> None:
    assert run_in_a_fresh_zygote("heavy:threaded", "trace", tmp_path / "bundle") == {"trace": "passed"}
    assert len(loads.read_text().splitlines()) == 3, (
        "once to share it, which fails, then by the jobs of the golden and the trace"
    )


def prepared(weights: float) -> Prepared:
    return Prepared(cast(Any, None), {}, {}, "random", 0, round(weights * GB), 0.0)


class Held:
    """Stands in for the process that has loaded the model."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def turns_for(names: str, weights: float, free: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Turns:
    monkeypatch.setattr(memory, "free", lambda: round(free * GB))
    monkeypatch.setattr(memory, "kills", lambda: 0)
    request = request_for("tiny:mlp", Path("out"), names, **settings)
    made = Turns(cast(Zygote, object()), request.job(Path("work")), request.variants, Path("log"))
    made._holder = cast(Holder, Held())
    made.settle(prepared(weights))
    return made


def test_the_longest_export_goes_first_if_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace,onnx,compile", 0.1, 100, monkeypatch)
    ordered = turns.in_order(targets.parse("trace,onnx,compile"))
    assert [v.name for v in ordered] == ["compile", "onnx", "trace"]


def test_users_of_the_loaded_model_go_first_if_not_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace,onnx,compile", 3.1, 20, monkeypatch)
    ordered = turns.in_order(targets.parse("trace,onnx,compile"))
    assert [v.name for v in ordered] == ["trace", "compile", "onnx"]


def test_the_loaded_model_is_released_by_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace,compile", 3.1, 20, monkeypatch)
    held, before = cast(Any, turns._holder), turns.room.size
    with turns.golden():
        pass
    assert not held.closed, "the trace still needs it"
    with turns.export(targets.Variant("trace")) as zygote:
        assert zygote is held
    assert held.closed
    assert turns.room.size == before + round(3.1 * GB)
    with turns.export(targets.Variant("compile")) as zygote:
        assert zygote is not held


@pytest.mark.parametrize(("free", "widened"), [(100, 0.2), (1.5, 0.0)])
def test_the_golden_may_hold_the_weights_that_fit(free: float, widened: float, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace", 0.1, free, monkeypatch)
    with turns.golden() as allowed:
        assert allowed == round(widened * GB)


def test_a_job_is_planned_with_at_most_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace", 3.1, 20, monkeypatch, memory_limit_gb=1.0)
    assert turns.plan.share(memory_needs.exports, "trace") == GB


def test_a_memory_limit_that_is_too_low_is_explained(run: Run) -> None:
    manifest, _ = run("heavy:greedy", "trace,export", memory_limit_gb=4.0)
    rows = {variant.name: variant for variant in manifest.variants}
    assert rows["export"].status == "passed"
    assert rows["trace"].status == "failed"
    reason = rows["trace"].reason
    assert reason.startswith("There was not enough memory: the export to trace needs about 0.8 GB; "), reason
    assert "--memory-limit is 4.0 GB" in reason
    assert "can't allocate memory" in reason
    assert "--targets trace" in rows["trace"].remedy


@pytest.mark.parametrize(
    ("kills", "reason"),
    [
        ([0, 1], "There was not enough memory: the export to trace needs about 0.8 GB; "),
        (
            [0, 0],
            "It was killed from outside, perhaps because memory ran out: the export to trace needs about 0.8 GB; ",
        ),
    ],
)
def test_a_kill_is_attributed_to_memory_if_the_kernel_reports_it(
    kills: list[int], reason: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = kills
    usual = MemoryPlan.explain
    monkeypatch.setattr(memory, "free", lambda: round(90 * GB))
    monkeypatch.setattr(memory, "kills", lambda: before)

    def explain(plan: MemoryPlan, record: VariantRecord) -> VariantRecord:
        monkeypatch.setattr(memory, "kills", lambda: after)
        return usual(plan, record)

    monkeypatch.setattr(MemoryPlan, "explain", explain)
    manifest, _ = run("heavy:killed", "trace")
    (row,) = manifest.variants
    assert (row.status, row.stage) == ("failed", "export")
    assert row.reason.startswith(reason), row.reason
    assert "90.0 GB was free" in row.reason
    assert "SIGKILL" in row.reason


def test_a_shortage_of_the_eager_session_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turns_for("trace,onnx", 3.1, 5, monkeypatch)
    failed = VariantRecord("eager", "eager", "failed", "load", reason="std::bad_alloc (python)", cause="out-of-memory")
    found = turns.plan.explain(failed)
    assert found.reason.startswith(
        "There was not enough memory: a session of eager needs about 7.7 GB; 5.0 GB was free"
    )
    assert found.remedy == "use a machine with 8.5 GB free"


def test_weights_of_a_saved_program_are_mapped(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(300, 200), torch.nn.Linear(200, 300)
            self.b.weight = torch.nn.Parameter(self.a.weight.detach().t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    file = tmp_path / "program.pt2"
    x = torch.randn(2, 300)
    torch.export.save(torch.export.export(Model(), (x,)), file)
    usual, found = torch.export.load(file), mapped_program.load(file)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert found.state_dict.keys() == usual.state_dict.keys()
    for name, tensor in usual.state_dict.items():
        one = found.state_dict[name]
        assert torch.equal(one, tensor)
        assert (type(one), one.stride(), one.requires_grad) == (type(tensor), tensor.stride(), tensor.requires_grad)
    assert torch.equal(found.module()(x), usual.module()(x))
    found.state_dict["a.bias"].data.fill_(7.0)
    assert torch.export.load(file).state_dict["a.bias"].ne(7.0).all(), "the file does not change"
