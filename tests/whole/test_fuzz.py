"""Random modules: each artifact is right at sizes and values outside the golden, or the export fails with a cause.

`HYPOTHESIS_PROFILE=nightly` draws 500 modules instead of 12, different ones each time, and adds C++ and AOTInductor.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz import cases
from fuzz.inline import Inline
from fuzz.modules import Drawn, modules, simpler
from fuzz.worker import Judged, Worker
from hypothesis import HealthCheck, Phase, assume, given, settings

from exporter.core.records import Manifest, ModelRecord, VariantRecord
from exporter.workers.children import Zygote

# We shrink cases ourselves: hypothesis does not know that the bytes are statements, and a case takes seconds.
COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("default", max_examples=12, derandomize=True, **COMMON)
settings.register_profile("nightly", max_examples=500, derandomize=False, **COMMON)  # otherwise not random if CI is set
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
NIGHTLY = PROFILE == "nightly"
TARGETS = "trace,script,export,onnx"
COMPILE_EVERY = 20  # AOTInductor takes 20 s, so only one case in 20 has it
# Shares of the drawn cases, of all rows, and of the refusals.
MOST_DISCARDED, LEAST_PASSED, MOST_UNNAMED = 0.3, 0.6, 0.25

Judge = Callable[[Drawn], Judged]
RECIPE = """
import os, signal, torch

class Model(torch.nn.Module):
    def forward(self, x):
        {statement}
        return x * {factor}

class drawn:
    sizes = {{"batch": (1, 9)}}
    load = staticmethod(lambda weights: Model().eval())
    inputs = staticmethod(lambda batch=2: torch.randn(batch, 4))
"""


@pytest.fixture
def worker(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker that runs and judges one case at a time."""
    if not NIGHTLY:
        monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", lambda *_: zygote.lend())
    made = Worker(lambda: zygote.spawn("fuzz", "fuzz.worker:serve", {}, tmp_path / "worker.log"), cases.run)
    yield made
    made.close()


@pytest.fixture
def judge(worker: Worker, tmp_path: Path) -> Judge:
    """A function that runs a drawn module through every target and judges the results."""
    count = itertools.count(1)

    def act(drawn: Drawn) -> Judged:
        name = f"drawn_{hashlib.sha256(drawn.source.encode()).hexdigest()[:12]}"
        file = tmp_path / f"{name}.py"
        file.write_text(drawn.source)
        names = f"{TARGETS},compile" if next(count) % COMPILE_EVERY == 0 and NIGHTLY else TARGETS
        return worker.judge(file, names, tmp_path / name)

    return act


def written(file: Path, statement: str, factor: int) -> Path:
    """Write a recipe like a drawn one."""
    file.write_text(RECIPE.format(statement=statement, factor=factor))
    return file


def test_a_wrong_artifact_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The artifact passes the golden of its own model, and is then compared with another model."""
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", Inline)
    twice, thrice = (cases.Case(written(tmp_path / f"drawn{n}.py", "pass", n)) for n in (2, 3))
    with Inline():
        manifest, place = cases.run(twice, "trace,export", tmp_path / "bundle")
        assert list(cases.untrue(twice, manifest, place)) == []
        found = list(cases.untrue(thrice, manifest, place))
    assert all("passed and is wrong: output at batch=" in text for text in found)
    assert {text.split()[0] for text in found} == {"trace", "export"}


@pytest.mark.parametrize(
    ("reason", "untrue", "unnamed"),
    [
        ("batch is fixed at 2 (python)", False, False),
        ("A branch depends on the values of tensors (net.py:3): torch.export: ...", False, False),
        ("ValueError: no such mode (/tmp/net.py:12)", False, False),
        ("AttributeError: 'NoneType' object has no attribute 'ndim' (/tmp/net.py:12)", False, True),
        ("output at batch=3: 1.0 where the reference is 2.0 at [0]", False, True),
        ("RuntimeError: 0 INTERNAL ASSERT FAILED at alias_analysis.cpp (net.py:3)", True, True),
        ("", True, True),
    ],
)
def test_a_refusal_without_a_cause_is_detected(reason: str, untrue: bool, unnamed: bool, tmp_path: Path) -> None:
    row = VariantRecord("trace", "trace", "failed", "export", reason)
    manifest = Manifest(ModelRecord("m", "m", "random", 0), "cpu", 1, "", "", "", variants=(row,))
    assert bool(list(cases.untrue(cases.Case(tmp_path), manifest, tmp_path))) == untrue
    assert bool(cases.unnamed(manifest)) == unnamed


def test_a_case_that_crashes_is_run_again(worker: Worker, tmp_path: Path) -> None:
    """It runs again with a process for each job, as in normal use: only the crashing row fails."""
    crash = "torch.compiler.is_exporting() and os.kill(os.getpid(), signal.SIGSEGV)"
    judged = worker.judge(written(tmp_path / "drawn.py", crash, 2), "trace,export", tmp_path / "bundle")
    assert judged == Judged({"trace": "passed", "export": "failed"})


def test_drawn_modules_differ_and_can_be_simplified() -> None:
    seen: list[Drawn] = []

    @settings(settings.get_profile("default"), max_examples=20)
    @given(modules())
    def draw(drawn: Drawn) -> None:
        seen.append(drawn)

    draw()
    assert len({one.source for one in seen}) == 20
    longest = max(seen, key=lambda one: len(one.source))
    for one in (longest, *simpler(longest)):
        compile(one.source, "drawn.py", "exec")
    assert min(len(one.source) for one in simpler(longest)) < len(longest.source)


@pytest.mark.timeout(0 if NIGHTLY else 900)
def test_every_artifact_is_right_or_refused(judge: Judge) -> None:
    counts: collections.Counter[str] = collections.Counter()
    unnamed: list[str] = []

    @settings(settings.get_profile(PROFILE))
    @given(modules())
    def right_or_refused(drawn: Drawn) -> None:
        judged = judge(drawn)
        counts.update(["drawn", *judged.rows.values()], discarded=not judged.rows)
        assume(judged.rows)
        unnamed.extend(judged.unnamed)
        if judged.untrue:
            pytest.fail(_report(drawn, judged, judge), pytrace=False)

    right_or_refused()
    print(dict(counts), *unnamed, sep="\n")
    assert counts["discarded"] < MOST_DISCARDED * counts["drawn"]
    assert counts["passed"] > LEAST_PASSED * (counts["passed"] + counts["failed"])
    assert len(unnamed) < MOST_UNNAMED * counts["failed"], "\n".join(unnamed)


def _report(drawn: Drawn, judged: Judged, judge: Judge) -> str:
    """Describe what is wrong, with the simplest module found that shows it."""
    found = True
    while found:
        found = False
        for candidate in simpler(drawn):
            if candidate.source != drawn.source and _same(again := judge(candidate), judged):
                drawn, judged, found = candidate, again, True
                break
    return "\n".join([*judged.untrue, drawn.source])


def _same(one: Judged, other: Judged) -> bool:
    """Return whether both are wrong in the same targets and in the same way."""
    return bool(one.untrue) and [text[:24] for text in one.untrue] == [text[:24] for text in other.untrue]
