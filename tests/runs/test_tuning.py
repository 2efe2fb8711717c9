"""Tuning: a choice is kept if it is faster and right, and built again without tuning."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commands import TESTS, Cli, Run, recipe_path, request_for
from support.schema import fits_the_schema

from exporter import targets
from exporter.bundle import integrity, layout
from exporter.bundle.signing import Trust
from exporter.core import machine_load
from exporter.core.errors import JobError, UsageError
from exporter.core.progress import Listener
from exporter.core.records import ArtifactRecord, Manifest, VariantRecord
from exporter.core.timing_records import MachineLoad
from exporter.core.tuning_records import Choice, Tried, changed, kept, told
from exporter.report import console, markdown
from exporter.runs import pipeline, tuning
from exporter.runs.judging import Judging
from exporter.runs.request import Request, again
from exporter.targets import Candidate, Options
from exporter.workers.children import EXPORTING, Zygote
from exporter.workers.messages import Prepared

FASTER, WRONG, SLOWER, RAISES, CRASHES, DIES_LATER, SLOWER_AT_8, FASTEST, SOMEWHAT = range(
    18, 27
)  # as in plugin/tuned_plugin.py
SETTINGS: dict[str, Any] = {"bench": True, "tune": 60.0, "time_budget": 0.3}


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package whose target can be tuned. It exists before the zygote starts."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(TESTS / "plugin" / "tuned_plugin.py", site / "tuned_plugin.py")
    info = site / "tuned_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tuned-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[exporter.targets]\ntuned = tuned_plugin\n")
    return site


@pytest.fixture(scope="module")
def zygote(_site: Path) -> Iterator[Zygote]:
    """A zygote whose jobs find the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", "/tmp")  # not the folder of the first test, which is deleted
        patch.setenv("PYTHONPATH", str(_site), prepend=os.pathsep)
        made = Zygote(None, EXPORTING)
    with made:
        yield made


@pytest.fixture(autouse=True)
def _plugin(_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(_site)
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")


def offer(monkeypatch: pytest.MonkeyPatch, *opsets: int, **how: bool) -> None:
    """Let the target offer these choices."""
    found = [Candidate(Choice("opset", (str(opset),)), **how) for opset in opsets]
    monkeypatch.setattr(targets.get("tuned"), "candidates", lambda options: found)


def tuned(made: Manifest) -> VariantRecord:
    return next(one for one in made.variants if one.name == "tuned")


def verdicts(made: Manifest) -> list[tuple[str, str]]:
    return [(one.choice.values[0], one.verdict) for one in tuned(made).tuning]


def bounds(tried: Tried) -> tuple[float, float, float]:
    """Return the lower bound of the ratio, the ratio and the upper bound."""
    assert tried.low is not None
    assert tried.ratio is not None
    assert tried.high is not None
    return tried.low, tried.ratio, tried.high


def opened(place: Path) -> str:
    """Return the option with which the artifact in the bundle was built."""
    import torch

    extra: dict[str, Any] = {"how": ""}
    torch.jit.load(place / "tuned.pt", _extra_files=extra)
    text: bytes = extra["how"]
    return text.decode()


def test_a_faster_choice_is_kept_and_the_next_is_compared_with_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, SLOWER, FASTER, FASTEST, RAISES, CRASHES)
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    row = tuned(made)
    assert row.status == "passed"
    assert verdicts(made) == [
        *((str(SLOWER), "rejected"), (str(FASTER), "kept"), (str(FASTEST), "kept")),
        *((str(RAISES), "rejected"), (str(CRASHES), "rejected")),
    ]
    slower, faster, fastest, raises, crashes = row.tuning
    assert "not faster beyond doubt" in slower.reason
    assert bounds(slower)[2] >= 1
    low, ratio, high = bounds(faster)
    assert low <= ratio <= high < 0.6, "it sleeps for a sixth of the time"
    assert fastest.session == "python"
    assert "it cannot be built" in raises.reason
    assert "SIGSEGV" in crashes.reason
    assert opened(place) == str(FASTEST)
    assert row.notes[0] == f"built as {FASTEST}"
    assert f"--opset {FASTEST}" in row.reproduce
    assert "--tune" not in row.reproduce
    assert row.artifact == layout.record(place / "tuned.pt")
    assert row.timings["python"].median_ms < 3
    assert not list(place.glob(".*")), "no build is left"
    fits_the_schema(place)
    assert not integrity.examine(place, Trust()).problems
    line = f"tuned: opset={FASTER}, {faster.gain}; opset={FASTEST}, {fastest.gain}"
    assert line in " ".join(console.render(made).split())
    assert f"- tuned: {line}" in markdown.render(made)


def test_a_faster_choice_that_is_wrong_is_rejected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, WRONG, DIES_LATER)
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    wrong, dies = tuned(made).tuning
    assert (wrong.verdict, dies.verdict) == ("rejected", "rejected")
    assert "it fails at check: output at batch=2" in wrong.reason
    assert "where the reference is" in wrong.reason
    assert bounds(wrong)[2] < 1, "it is faster"
    assert "SIGSEGV" in dies.reason
    assert (tuned(made).status, opened(place)) == ("passed", "0")
    assert "tuned: nothing kept" in " ".join(console.render(made).split())


def test_a_choice_that_is_slower_at_another_timed_size_is_rejected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, SLOWER_AT_8)
    made, place = run("tiny:mlp", "tuned", sizes={"batch": 2}, sweep={"batch": (2, 8)}, **SETTINGS)
    (slower,) = tuned(made).tuning
    assert slower.verdict == "rejected"
    assert "slower at batch=8" in slower.reason
    assert bounds(slower)[2] < 1, "at the example it is faster"
    assert opened(place) == "0"


@pytest.mark.parametrize(("others", "verdict"), [(0.0, "kept"), (1.0, "rejected")])
def test_a_busy_machine_needs_a_larger_gain(
    run: Run, monkeypatch: pytest.MonkeyPatch, others: float, verdict: str
) -> None:
    """The interval is widened by the share of the machine that others took."""
    offer(monkeypatch, SOMEWHAT)
    load = MachineLoad(cpus=2, others=others, steal=0.0, throttled=0.0, hot=0, load=3.0)
    monkeypatch.setattr(machine_load.Watch, "load", lambda _: load)
    made, _ = run("tiny:mlp", "tuned", **SETTINGS)
    (faster,) = tuned(made).tuning
    assert bounds(faster)[2] < 1
    assert faster.verdict == verdict
    assert ("on a busy machine (other processes used 100%" in faster.reason) == (verdict == "rejected")


def test_a_choice_at_load_is_built_only_if_it_is_faster(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    from_child = Zygote.run

    def counted(self: Zygote, name: str, function: str, arguments: dict[str, Any], *rest: Any) -> Any:
        if name == "export to tuned":
            built.append(str(arguments["job"].options.opset))
        return from_child(self, name, function, arguments, *rest)

    monkeypatch.setattr(Zygote, "run", counted)
    offer(monkeypatch, SLOWER, FASTER, at_load=True)
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    assert verdicts(made) == [(str(SLOWER), "rejected"), (str(FASTER), "kept")]
    assert built == ["None", str(FASTER)]
    assert opened(place) == str(FASTER)


def test_advice_changes_no_artifact(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FASTER, at_load=True, advice=True)
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    assert verdicts(made) == [(str(FASTER), "advice")]
    assert opened(place) == "0"
    assert "--opset" not in tuned(made).reproduce
    assert f"faster if loaded with opset={FASTER}, " in " ".join(console.render(made).split())


def test_no_choice_is_begun_once_the_seconds_are_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FASTER, FASTEST)
    made, place = run("tiny:mlp", "tuned", **(SETTINGS | {"tune": 1e-9}))
    assert verdicts(made) == [(str(FASTER), "rejected"), (str(FASTEST), "rejected")]
    assert all(one.reason == "not tried: the time was over" for one in tuned(made).tuning)
    assert opened(place) == "0"


def test_a_rebuild_makes_the_choice_without_tuning(
    run: Run, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    assert kept(tuned(made).tuning) == (Choice("opset", (str(FASTER),)),)

    def never(*_: Any) -> None:
        raise AssertionError("it tunes again")

    monkeypatch.setattr(tuning.Tuning, "tune", never)
    done = cli("check", place, "--rebuild", "-q")
    lines = {line.split()[0]: line for line in done.out.splitlines() if line}
    assert done.code == 0, done.out + done.err
    assert "identical" in lines["tuned.pt"]
    assert again(layout.read_manifest(place)).chosen == {"tuned": (Choice("opset", (str(FASTER),)),)}


class Interrupting(Listener):
    """Press Ctrl-C when a choice is tried."""

    def stage(self, variant: str, stage: str) -> None:
        if stage == f"tune opset={FASTEST}":
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("lent_zygote")
def test_an_interrupted_tuning_leaves_the_artifact_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, FASTER, FASTEST)
    out = tmp_path / "bundle"
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(request_for("tiny:mlp", out, "tuned", **SETTINGS), Interrupting())
    made = layout.read_manifest(out)
    assert (made.status, tuned(made).status, opened(out)) == ("interrupted", "passed", "0")
    assert tuned(made).artifact == layout.record(out / "tuned.pt")
    assert [one.name for one in tmp_path.iterdir()] == ["bundle"]
    assert not integrity.examine(out, Trust()).problems


def test_the_artifact_stays_if_the_tuned_one_fails_in_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final check of the tuned artifact fails, as that of a model that is not repeatable may."""
    judge = Judging.judge

    def failing(self: Judging, record: VariantRecord, prepared: Prepared, keep: bool = True) -> VariantRecord:
        found = judge(self, record, prepared, keep)
        failed = kept(record.tuning) != () and found.status == "passed"
        return replace(found, status="failed", stage="check", reason="not today") if failed else found

    monkeypatch.setattr(Judging, "judge", failing)
    made, place = run("tiny:mlp", "tuned", **SETTINGS)
    row = tuned(made)
    assert (row.status, opened(place), verdicts(made)) == ("passed", "0", [(str(FASTER), "rejected")])
    assert row.tuning[0].reason == "with all choices it fails at check: not today"
    assert row.artifact == layout.record(place / "tuned.pt")
    assert "--opset" not in row.reproduce
    assert row.timings
    assert not integrity.examine(place, Trust()).problems


def test_variants_that_are_not_tuned_say_why(run: Run) -> None:
    made, _ = run("tiny:mlp", "export,compile:eager", **SETTINGS)
    notes = {one.name: one.notes for one in made.variants}
    assert "not tuned: it is compiled just in time" in notes["compile:eager"]
    assert "not tuned: the target export has nothing to try" in notes["export"]


@pytest.mark.parametrize(
    ("names", "settings", "cause"),
    [
        ("trace", {"bench": False}, "--tune needs timing"),
        ("compile:eager", {"bench": True}, "does not apply to variants compiled just in time"),
    ],
)
def test_tuning_without_a_use_is_refused(names: str, settings: dict[str, Any], cause: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=cause) as raised:
        request_for("tiny:mlp", tmp_path, names, tune=5.0, **settings).validate()
    assert raised.value.remedy


def files(folder: Path, *names: str) -> tuple[ArtifactRecord, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{folder.name}/{name}")
    return tuple(layout.record(folder / name) for name in names)


def test_replacing_an_artifact_is_undone_if_its_record_cannot_be_kept(tmp_path: Path) -> None:
    """The new artifact has a companion, the old one has not."""
    bundle = tmp_path / "bundle"
    (old,) = files(bundle, "model.onnx")
    new, companion = files(bundle / ".work" / "new", "model.onnx", "model.onnx.data")
    before = VariantRecord("onnx", "onnx", "passed", artifact=old)
    moved = ArtifactRecord(".work/new/model.onnx", new.bytes, new.sha256)
    after = VariantRecord("onnx", "onnx", "passed", artifact=moved, companions=(companion,))

    def interrupted() -> None:
        with tuning.replaced(bundle, before, after, bundle / ".work" / "aside") as record:
            assert record.artifact == new
            assert (bundle / "model.onnx").read_text() == "new/model.onnx"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert layout.record(bundle / "model.onnx") == old
    assert {one.name for one in bundle.iterdir()} == {"model.onnx", ".work"}


def test_a_choice_changes_settings_of_every_kind() -> None:
    choices = [
        Choice("inductor", ("a=1", "b=2")),
        Choice("graph_optimization", ("basic",)),
        Choice("threads", ("2",)),
        Choice("channels_last", ("True",)),
        Choice("opset", ("20",)),
        Choice("huge_pages", ("True",)),
    ]
    found: Options = changed(Options(inductor=("c=3",), threads=4), choices)
    assert found == Options(
        inductor=("c=3", "a=1", "b=2"),
        graph_optimization="basic",
        threads=2,
        channels_last=True,
        opset=20,
        huge_pages=True,
    )


def test_what_is_told_of_a_tuning() -> None:
    tried = [
        Tried(Choice("inductor", ("a=1", "b=2")), "kept", "", "native", 0.5, 0.4, 0.8),
        Tried(Choice("threads", ("1",)), "advice", "", "python", 0.8, 0.75, 0.9),
        Tried(Choice("graph_optimization", ("basic",)), "rejected", "not faster", "python", 1.0, 0.9, 1.1),
    ]
    assert told(tried) == [
        "tuned: a=1, b=2, 2.00x (1.25…2.50)",
        "faster if loaded with threads=1, 1.25x (1.11…1.33) in python",
    ]
    assert told(tried, threads=2) == told(tried)
    assert told(tried, threads=1) == told(tried)[:1], "it is loaded with one thread already"
    assert told(tried[2:]) == ["tuned: nothing kept, 1 of 1 choices measured"]
    assert told([]) == []


def offered(name: str, **options: Any) -> Sequence[Candidate]:
    return list(targets.facts(name).candidates(Options(**({"threads": 4} | options))))


def names(found: Sequence[Candidate]) -> set[str]:
    return {one.choice.setting for one in found}


def test_what_the_targets_offer_depends_on_the_device_and_on_what_the_user_has_set() -> None:
    assert names(offered("trace")) == {"channels_last", "threads"}
    assert names(offered("trace", channels_last=True)) == {"threads"}
    assert names(offered("trace", device="cuda")) == {"channels_last"}
    assert "huge_pages" in names(offered("compile"))
    assert {"huge_pages", "threads"}.isdisjoint(names(offered("compile", device="cuda")))
    values = {value for one in offered("onnx", device="cuda") for value in one.choice.values}
    assert "enable_cpu_mem_arena=False" not in values
    assert "graph_optimization" not in names(offered("onnx", graph_optimization="basic"))
    assert [one.choice.values for one in offered("trace") if one.choice.setting == "threads"] == [("2",), ("1",)]


def test_the_command_line_tunes(cli: Cli, tmp_path: Path) -> None:
    words = ["export", recipe_path("tiny:mlp"), "--targets", "trace", "--out", tmp_path / "b"]
    refused = cli(*words, "--tune", 5, "--no-bench")
    assert refused.code == 2
    assert "--tune needs timing" in refused.err
    done = cli(*words, "--tune", 5, "--time-budget", 0.1, "--threads", 1)
    assert done.code == 0, done.out + done.err
    (tried,) = next(one for one in layout.read_manifest(tmp_path / "b").variants if one.name == "trace").tuning
    assert "no weight has four dimensions" in tried.reason


def test_the_request_is_recorded_with_its_seconds(run: Run) -> None:
    made, _ = run("tiny:mlp", "trace", **SETTINGS)
    assert made.request is not None
    assert made.request.tune == 60.0
    request: Request = again(made)
    assert request.tune == 60.0


def test_a_build_that_writes_nothing_is_rejected(tmp_path: Path) -> None:
    record = VariantRecord("trace", "trace", "passed")
    builder = tuning._Builder(lambda *_: record, tmp_path / "0", 1.0)
    with pytest.raises(JobError, match="wrote no artifact"):
        tuning._build(builder, tmp_path, Options())
