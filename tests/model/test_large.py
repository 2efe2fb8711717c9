"""The table of benchmarks/large.py, from records."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import large


def event(at: float, variant: str, stage: str) -> dict[str, Any]:
    return {"at": 100 + at, "variant": variant, "stage": stage}


def test_step_ends_at_next_event_of_its_variant() -> None:
    events = [event(0, "eager", "load model"), event(2, "trace", "export"), event(3, "eager", "golden")]
    events += [event(5, "trace", "waiting"), event(6, "trace", "check"), event(8, "trace", "done")]
    samples = [(1.0, 1.0), (2.5, 2.0), (4.0, 3.0), (7.0, 1.5)]
    found = large.steps(events, samples, 100.0, 9.0)
    assert {name: (one["begin"], one["seconds"], one["peak_gb"]) for name, one in found.items()} == {
        "load model": (0, 3, 2.0),
        "export trace": (2, 3, 3.0),
        "golden": (3, 6, 3.0),
        "check trace": (6, 2, 1.5),
    }


def record(weights: float, peak: float, steps: dict[str, Any], samples: list[tuple[int, float]]) -> dict[str, Any]:
    run = {"machine": {}, "date": "", "command": "", "transformers": "", "failed": "", "seconds": 9.0, "parity": {}}
    return {**run, "weights_gb": weights, "peak_gb": peak, "steps": steps, "samples": samples}


@pytest.mark.parametrize(
    ("compiling", "beside", "kept"), [(13.0, 12.8, True), (14.0, 12.8, False), (13.0, 12.9, False)]
)
def test_compile_and_other_steps_have_separate_limits(compiling: float, beside: float, kept: bool) -> None:
    steps = {"export compile": {"begin": 5.0, "seconds": 2.0, "peak_gb": compiling}}
    ours = record(3.1, compiling, steps, [(1, beside), (6, compiling)])
    table, found = large.render({"0.8 exporter": ours, "0.8 torch": record(3.1, 12.0, {}, [])})
    assert found is kept
    assert ("OVER" in table) is not kept


def test_failed_run_breaks_the_promise() -> None:
    ours = {**record(3.1, 1.0, {}, []), "failed": "stopped"}
    table, kept = large.render({"0.8 exporter": ours})
    assert not kept
    assert "stopped" in table


def test_peaks_are_maxima_per_second() -> None:
    assert large.peaks([(0.1, 1.0), (0.9, 3.0), (1.2, 2.0)]) == [(0, 3.0), (1, 2.0)]


def test_compile_of_small_model_is_judged_in_ordered_run() -> None:
    def compiling(gb: float) -> dict[str, Any]:
        return record(0.5, gb, {"export compile": {"begin": 5.0, "seconds": 2.0, "peak_gb": gb}}, [(1, 1.0), (6, gb)])

    runs = {"0.1 exporter": compiling(4.9), "0.1 torch": record(0.5, 3.0, {}, [])}
    assert not large.render(runs)[1], "no ordered run shows the memory of compile alone"
    assert large.render({**runs, "0.1 in order": compiling(3.2)})[1]
    assert not large.render({**runs, "0.1 in order": compiling(3.4)})[1]
    assert not large.render({**runs, "0.1 in order": {**compiling(3.2), "failed": "stopped"}})[1]


def test_only_small_models_have_an_ordered_run() -> None:
    assert [kind for kind, _ in large._runs("0.1", "trace,compile")] == ["exporter", "torch", "in order"]
    assert [kind for kind, _ in large._runs("0.4", "trace,compile")] == ["exporter", "torch"]
    assert [kind for kind, _ in large._runs("0.1", "trace")] == ["exporter"]


def test_run_that_lacks_a_target_is_repeated() -> None:
    run = {**record(3.1, 1.0, {}, []), "parity": {"trace": {}, "onnx": {}}}
    assert not large.lacks(run, "trace,onnx")
    assert large.lacks(run, "trace,compile,onnx")
    assert large.lacks({**run, "failed": "stopped"}, "trace")
    assert not large.lacks(run, ""), "torch's own run has no variants"


def test_event_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, events of concurrent threads could share a line."""
    pieces: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=pieces.append, flush=lambda: None))
    large._report(variant="trace", stage="check")
    (piece,) = pieces
    assert piece.startswith(large.EVENT)
    assert piece.endswith("\n")
