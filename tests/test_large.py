"""The table of benchmarks/large.py, from records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import large


def event(at: float, variant: str, stage: str) -> dict[str, Any]:
    return {"at": 100 + at, "variant": variant, "stage": stage}


def test_a_step_lasts_until_its_variants_next() -> None:
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
def test_each_time_has_its_limit(compiling: float, beside: float, kept: bool) -> None:
    steps = {"export compile": {"begin": 5.0, "seconds": 2.0, "peak_gb": compiling}}
    ours = record(3.1, compiling, steps, [(1, beside), (6, compiling)])
    table, found = large.render({"0.8 exporter": ours, "0.8 torch": record(3.1, 12.0, {}, [])})
    assert found is kept
    assert ("OVER" in table) is not kept


def test_a_failed_run_keeps_no_promise() -> None:
    ours = {**record(3.1, 1.0, {}, []), "failed": "stopped"}
    table, kept = large.render({"0.8 exporter": ours})
    assert not kept
    assert "stopped" in table


def test_peaks_are_those_of_a_second() -> None:
    assert large.peaks([(0.1, 1.0), (0.9, 3.0), (1.2, 2.0)]) == [(0, 3.0), (1, 2.0)]
