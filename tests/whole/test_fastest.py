"""`benchmarks/fastest.py`: its promises, checked against results made by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fastest

CASE = "batch=1"


def rows(*given: tuple[str, float] | tuple[str, float, dict[str, str]]) -> list[fastest.Row]:
    """Return the rows of variants with a latency and, if they failed, the verdict of each case."""
    variants: list[dict[str, Any]] = []
    for name, _, *verdicts in given:
        parts = [{"case": case, "verdict": verdict} for case, verdict in (verdicts[0] if verdicts else {}).items()]
        variants.append(
            {
                "name": name,
                "status": "failed" if verdicts else "passed",
                "artifact": None if verdicts or name == "eager" else {"path": name},
                "timings": {"python": {}},
                "parity": {"parts": []},  # only those of sessions have parts
                "sessions": [{"parity": None}, {"parity": {"parts": parts, "reason": "wrong at batch=2; more"}}],
            }
        )
    samples = {f"{name} python": [[ms], [2 * ms], [ms]] for name, ms, *_ in given}
    return fastest.rows({"variants": variants, "golden": {"cases": [{"name": CASE}]}}, samples)


def test_ratio_has_its_interval_in_pairs_of_windows() -> None:
    line, kept = fastest.check(rows(("eager", 30.0), ("trace", 10.0)), fastest.Promise("toy", None, "eager", 3.0))
    assert kept
    assert line == "toy any precision over eager: 3.00 (3.00…3.00), promised 3: trace python 10 ms, eager python 30 ms"


@pytest.mark.parametrize(("precisions", "ratio", "kept"), [(("fp32",), 1.1, True), (None, 0.8, False)])
def test_best_peer_is_of_the_same_precisions(precisions: tuple[str, ...] | None, ratio: float, kept: bool) -> None:
    found = rows(("onnx", 10.0), ("compile@int8", 5.0), ("ort", 12.0), ("openvino", 11.0), ("openvino@int8", 4.0))
    line, held = fastest.check(found, fastest.Promise("toy", precisions, fastest.THE_PEERS, 1.05))
    assert held is kept
    assert f": {ratio:.2f} (" in line
    assert line.endswith("OVER") is not kept


def test_peer_counts_if_it_is_right_at_the_timed_size_only() -> None:
    right, wrong = {CASE: "rounding", "batch=2": "FAIL"}, {CASE: "FAIL", "batch=2": "rounding"}
    found = rows(("compile", 10.0, right), ("xnnpack", 9.0, right), ("openvino", 8.0, wrong))
    assert list(map(str, found)) == ["xnnpack python 9 ms (wrong at batch=2)"]


def test_missing_measurement_breaks_the_promise() -> None:
    line, kept = fastest.check(rows(("eager", 30.0)), fastest.Promise("toy", None, "eager", 1.0))
    assert (line, kept) == ("toy any precision over eager: not measured  OVER", False)


def test_time_to_read_the_weights_depends_on_the_precision() -> None:
    found = rows(("trace", 8.0), ("compile@int8", 4.0), ("ort", 12.0))
    ours, ours_any, theirs, _ = fastest.floors(found, {"weights": 1e6, "bytes_per_s": 4e9})
    assert "trace python 8 ms is 8.0 times the 1 ms that reading its 4 MB" in ours
    assert "compile@int8 python 4 ms is 16.0 times the 0.25 ms that reading its 1 MB" in ours_any
    assert "ort python 12 ms is 12.0 times" in theirs


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fastest, "PEERS", ("trace", "nowhere"))
    assert list(fastest.present()) == ["trace"]
    assert capsys.readouterr().out.startswith("peer nowhere is missing: there is no target 'nowhere'")
