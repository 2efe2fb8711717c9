"""Tests of the output of `exporter profile`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.core.json_codec import from_json
from exporter.core.profile_records import Line, LineTime, Origin, Peaks, Profile, Profiled, Step, Steps
from exporter.report import profile

HOSTILE = "layer<script>\x1b[31m"
SHOWN = "layer<script>"


def _profile(count: int) -> Profile:
    variants = [
        Profiled(
            f"compile:backend={n}" if n else "eager",
            "python",
            10.0,
            (9.0, 11.0),
            (LineTime(0, 6.0, 0.6, 2, 0.5, 0.2, 0.5), LineTime(1, 3.0, 0.3, 1)),
            outside_ms=0.7,
            elsewhere_ms=0.3,
            copy_ms=0.5,
            fallbacks=("aten::sort",),
        )
        for n in range(count)
    ]
    failed = Profiled("onnx", "python", reason="it hangs", remedy="wait")
    lines = (Line("layers.*.dense", f"{__file__}:1", "", ("linear",), 2, 2e9, 4e6), Line(HOSTILE, "/gone/net.py:3"))
    peaks = Peaks(2e10, {"fp32": 1e11})
    return Profile("net", "cpu", 2, "batch=2", peaks, lines, (*variants, failed), ("try this",))


def _steps() -> Steps:
    origin = Origin(HOSTILE, "net.py:3")
    steps = (
        Step("aten::linear", 10.0, 60.0, origins=(origin,)),
        Step("fused", 80.0, 50.0, device_us=4.0),
    )
    return Steps(steps, 100.0)


def test_every_file_is_written_and_valid(tmp_path: Path) -> None:
    found = profile.write(_profile(2), {"eager": _steps(), "compile:backend=1": _steps()}, tmp_path / "out")
    read = from_json(Profile, (tmp_path / "out" / "profile.json").read_text())
    assert read == replace(found, lines=(found.lines[0], replace(found.lines[1], module=SHOWN)))
    assert [len(one.files) for one in found.variants] == [2, 2, 0]
    for one in found.variants[:2]:
        for name in one.files:
            trace = json.loads((tmp_path / "out" / name).read_text())
            (call,) = (event for event in trace["traceEvents"] if event["name"] == "ProfilerStep#0")
            for event in (event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"):
                assert call["ts"] <= event["ts"]
                assert event["ts"] + event["dur"] <= call["dur"]
    assert '"""Tests of the output' in found.lines[0].text


def test_the_page_is_one_file_and_escapes_names(tmp_path: Path) -> None:
    profile.write(_profile(2), {"eager": _steps()}, tmp_path)
    page = (tmp_path / "profile.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    assert "layer&lt;script&gt;" in page
    assert page.count('class="flame"') == 2
    assert "onnx was not profiled: it hangs" in page


@pytest.mark.parametrize("columns", [80, 120, 160])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_the_table_fits_the_terminal(columns: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = profile.render(_profile(count), Path("out"), 1)
    assert all(len(line) <= columns for line in text.splitlines())
    assert "\x1b" not in text
    assert "onnx was not profiled: it hangs" in text
    assert ("eager" in text) == (count > 0)
    if count:
        assert "6.000  60%" in text
        assert "3.000  30%" in text  # the other line
        assert "0.300   3%" in text  # elsewhere
        assert "0.700   7%" in text  # between operators
        assert "falls back to aten::sort" in text
    if count == 9:
        assert "its lines need a wider terminal" in text


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        profile.write(_profile(1), {}, tmp_path / "file" / "out")
