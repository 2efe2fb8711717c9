"""`benchmarks/tables.py`: rendering of raw results made by hand, and one row that is really measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.manifests import EAGER, failed, manifest, variant

from exporter.core.records import SessionRecord

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import _latency  # noqa: E402
import _render  # noqa: E402
import tables  # noqa: E402


def series(*medians: float, **facts: float) -> dict[str, Any]:
    """Return a row with a window of one sample for each median."""
    return {"windows": [[median] for median in medians], "stable": True, "facts": facts}


def table(*rotations: dict[str, Any]) -> dict[str, Any]:
    facts = {"cpu": "A Fine CPU", "torch": "2.14.1", "python": "3.12.1"}
    context = {"device": "cpu", "threads": 2, "quick": True, "created": "2026-01-02T03:04:05+00:00", "seconds": 9.0}
    return context | {"environment": facts, "rotations": list(rotations)}


def rotation(rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"group": "toy, batch 1", "baseline": "eager", "rows": rows, **more}


def test_rows_show_medians_and_intervals() -> None:
    rows = {"eager": series(10.0, 10.0), "trace": series(4.0, 6.0, build_s=1.5), "onnx": series(0.05, 0.05)}
    text = _render.markdown({"a": table(rotation(rows))})
    assert "## a: Latency at batch 1" in text
    assert "A Fine CPU, 2 threads; torch 2.14.1; Python 3.12.1; 2026-01-02; --quick. " in text
    assert "| row | latency | speed-up | build, s |" in text
    assert "| eager | 10.0 ±0.0 ms |  |  |" in text
    assert "| trace | 5.00 ±1.00 ms | 2.00x (1.67 to 2.50) | 1.50 |" in text
    assert "| onnx | 50.0 ±0.0 µs | 200.00x (200.00 to 200.00) |  |" in text
    assert "not measured" not in text


def test_failed_row_gives_its_reason_and_others_stay() -> None:
    rows = {"eager": series(10.0), "default": {"error": "no | compiler"}, "max-autotune": {"error": "no | compiler"}}
    text = _render.markdown({"b": table(rotation(rows))})
    assert "| eager | 10.0 ±0.0 ms |  |" in text
    assert "| default | not measured |  |" in text
    assert "- not measured: toy, batch 1: default; max-autotune: no \\| compiler" in text


def test_row_without_baseline_has_no_speedup() -> None:
    text = _render.markdown({"c": table(rotation({"eager": {"error": "out of memory"}, "compiled": series(4.0)}))})
    assert "| compiled | 4.00 ±0.00 ms |  |" in text


def test_growth_table_has_a_line_for_each_point() -> None:
    points = [
        rotation(
            {"eager": series(2.0 * batch), "trace": series(1.0 * batch, build_s=0.5)},
            point={"batch": batch, "layers": 2},
        )
        for batch in (1, 8)
    ]
    points[1]["rows"]["trace"] = {"error": "took too long", "facts": {"build_s": 7.0}}
    text = _render.markdown({"d": table(*points)})
    assert "| batch | layers | eager | trace |" in text
    assert "| 1 | 2 | 2.00 ±0.00 ms | 1.00 ±0.00 ms |" in text
    assert "| 8 | 2 | 16.0 ±0.0 ms | not measured |" in text
    assert "### Build time, s\n\n| batch | layers | trace |\n|---|---|---|\n| 1 | 2 | 0.50 |\n| 8 | 2 | 7.00 |" in text
    assert "- not measured: toy, batch 1, batch 8, layers 2: trace: took too long" in text


def test_rows_of_a_bundle() -> None:
    """A row for each language; a variant that failed or has no session has its reason."""
    crashed = SessionRecord("native", "failed", "check", "was ended by SIGSEGV")
    trace = variant("trace", sessions=(variant().sessions[0], crashed))
    script = variant("script", notes=("not frozen, because the frozen module is wrong or fails",))
    found = manifest(
        EAGER, trace, script, variant("compile:default", artifact=None), failed("onnx", "no such operator")
    )
    samples = {f"{name} python": [[1.0], [2.0]] for name in ("eager", "trace", "script", "compile:default")}
    rows = _latency.rows_of(found, samples)
    assert list(rows) == [
        "eager",
        "torch.jit.trace, frozen",
        "torch.jit.trace, frozen, C++",
        "torch.jit.script, not frozen",
        "torch.compile, default",
        "onnxruntime",
    ]
    assert rows["torch.jit.trace, frozen"] == {
        "windows": [[1.0], [2.0]],
        "stable": True,
        "facts": {"build_s": 1.5, "size_mb": 1.234567},
    }
    assert rows["torch.jit.trace, frozen, C++"] == {"error": "was ended by SIGSEGV"}
    assert rows["onnxruntime"] == {"error": "no such operator"}


def test_rendering_needs_only_the_raw_results(tmp_path: Path) -> None:
    (tmp_path / "raw.json").write_text(json.dumps({"b": table(rotation({"eager": series(1.0), "x": {"error": "no"}}))}))
    script = "import runpy, sys; sys.modules['torch'] = sys.modules['matplotlib'] = None; runpy.run_path(sys.argv[0])"
    script = script.replace("run_path(sys.argv[0])", "run_path(sys.argv[0], run_name='__main__')")
    program = f"import sys; sys.argv = {[str(BENCHMARKS / 'tables.py'), '--render', str(tmp_path)]}; {script}"
    environment = {"PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "pip install matplotlib" in done.stdout
    assert "| eager | 1.00 ±0.00 ms |" in (tmp_path / "tables.md").read_text()


@pytest.mark.parametrize(("same", "again"), [(True, ["max-autotune"]), (False, ["default", "max-autotune"])])
def test_resume_measures_what_failed_on_the_same_machine(monkeypatch, tmp_path: Path, same: bool, again: list) -> None:
    measured: list[str] = []

    def measure(bench: tables.Bench) -> list[dict[str, Any]]:
        def rows(mode: str) -> dict[str, Any]:
            measured.append(mode)
            return {mode: {"error": "too slow"} if mode == "max-autotune" else series(1.0)}

        return [bench.rotation("toy", mode, lambda mode=mode: rows(mode)) for mode in ("default", "max-autotune")]

    monkeypatch.setattr(tables, "MEASURES", {"b": measure})
    run = ["tables.py", "--quick", "--tables", "b", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", run)
    tables.main()
    assert measured == ["default", "max-autotune"]
    measured.clear()
    monkeypatch.setattr(sys, "argv", [*run, "--resume", *([] if same else ["--threads", "17"])])
    tables.main()
    assert measured == again
    assert [r["baseline"] for r in json.loads((tmp_path / "raw.json").read_text())["b"]["rotations"]] == [
        "default",
        "max-autotune",
    ]


def test_figures_are_reproducible(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = {"eager": series(10.0, 11.0), "trace": series(4.0, 6.0, build_s=1.5, peak_mb=7.0)}
    raw = {name: table(rotation(rows)) for name in "abc"}
    raw["d"] = table(*(rotation(rows, point={"batch": batch}) for batch in (1, 8)))
    found = []
    for place in (tmp_path / "one", tmp_path / "two"):
        place.mkdir()
        tables.draw(raw, place)
        found.append({file.name: file.read_bytes() for file in place.iterdir()})
    assert sorted(found[0]) == ["a.svg", "b.svg", "c.svg", "d.svg"]
    assert found[0] == found[1]


def test_measuring_the_smallest_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is really measured, and the other table of the file is kept."""
    monkeypatch.setattr(tables._modes, "QUICK", (tables._modes.SCALAR,))
    monkeypatch.setattr(tables._modes, "MODES", ("default",))
    (tmp_path / "raw.json").write_text(json.dumps({"a": {"kept": True}}))
    arguments = ["tables.py", "--quick", "--tables", "b", "--time-budget", "0.1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--row-limit", "280", "--limit", "280"])
    tables.measure(tables.parse())
    raw = json.loads((tmp_path / "raw.json").read_text())
    assert raw["a"] == {"kept": True}
    assert list(_render.errors(raw["b"])) == []
    rows = raw["b"]["rotations"][0]["rows"]
    assert list(rows) == ["eager, beside default", "default"]
    assert rows["default"]["facts"]["first_s"] > 0
    assert all(len(window) <= 100 for row in rows.values() for window in row["windows"])


def test_timeout_of_a_child_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables._modes, "QUICK", (tables._modes.SCALAR,))
    monkeypatch.setattr(tables._modes, "MODES", ("default",))
    arguments = ["tables.py", "--quick", "--tables", "b", "--out", str(tmp_path), "--row-limit", "0.01"]
    monkeypatch.setattr(sys, "argv", arguments)
    tables.measure(tables.parse())
    rows = json.loads((tmp_path / "raw.json").read_text())["b"]["rotations"][0]["rows"]
    assert "took longer than" in rows["default"]["error"]
