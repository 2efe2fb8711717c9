"""Tests of the output of `exporter profile`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.core.json_codec import from_json
from exporter.core.profile_records import Line, LineTime, Origin, Peaks, Profile, Profiled, Step, Steps
from exporter.report import profile, profile_traces

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
    assert not any(one in page for one in ("http:", "https:", "src=", "href=", "url(", "@import"))
    assert "layer&lt;script&gt;" in page
    assert page.count('class="flame"') == 2
    assert "onnx was not profiled: it hangs" in page
    assert "Remedy: wait" in page
    assert "falls back to aten::sort" in page
    assert "20% of the bandwidth, 50% of the FLOP rate, copies 0.500 ms" in page


def test_notes_are_on_the_page_and_in_the_text(tmp_path: Path) -> None:
    found = replace(_profile(1), notes=("the machine was busy",))
    profile.write(found, {}, tmp_path)
    assert "<p>the machine was busy</p>" in (tmp_path / "profile.html").read_text()
    assert "\nthe machine was busy\n" in profile.render(found, tmp_path, 1)


def test_the_page_of_a_profile_without_variants(tmp_path: Path) -> None:
    found = replace(_profile(0), variants=(), advice=())
    profile.write(found, {}, tmp_path)
    assert "<table" not in (tmp_path / "profile.html").read_text()


def test_the_boxes_of_a_flame_view_lie_inside_the_box_above(tmp_path: Path) -> None:
    profile.write(_profile(2), {}, tmp_path)
    flame = (tmp_path / "profile.html").read_text().partition('class="flame"')[2].partition("<h2>")[0]
    boxes = [
        (int(top), float(left), float(left) + float(width))
        for left, width, top in re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%; top: (\d+)px", flame)
    ]
    assert boxes[0] == (0, 0.0, 100.0)
    assert len(boxes) == 9  # the variant, three modules and a line, a module and a line, and the two rests
    for top, left, right in boxes[1:]:
        assert any(one[0] == top - 20 and one[1] <= left + 0.01 and right <= one[2] + 0.01 for one in boxes)
    assert sum(right - left for top, left, right in boxes if top == 20) == pytest.approx(100, abs=0.1)


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
        assert "6.00  60.0%" in text
        assert "3.00  30.0%" in text  # the other line
        assert "0.30   3.0%" in text  # elsewhere
        assert "0.70   7.0%" in text  # between operators
        assert "falls back to aten::sort" in text
        assert "FLOP/s" in text
    if count == 9:
        assert "their lines need a wider terminal" in " ".join(text.split())


def test_a_narrow_terminal_shows_the_fastest_variant_and_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _profile(5)
    variants = [replace(one, latency_ms=10.0 - index) for index, one in enumerate(found.variants[:5])]
    monkeypatch.setenv("COLUMNS", "80")
    text = profile.render(replace(found, variants=tuple(variants)), Path("out"), 5)
    heading = next(line for line in text.splitlines() if "GFLOP" in line)
    assert heading.split()[:3] == ["line", "eager", "nd=4"]  # the end of the fastest one's name
    assert "6 ms" in next(line for line in text.splitlines() if line.startswith("compile:backend=4 in python"))
    hidden = next(line for line in text.splitlines() if line.startswith("not shown"))
    assert "compile:backend=3" in hidden
    assert "eager" not in hidden


@pytest.mark.parametrize("top", [1, 7, 40])
def test_the_printed_shares_add_up(top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if most lines are summed up in one."""
    monkeypatch.setenv("COLUMNS", "120")
    count, outside = 37, 1.7
    times = tuple(LineTime(index, 3.0 / (index + 1), 0.3 / (index + 1), 1) for index in range(count))
    latency = sum(one.ms for one in times) + outside
    times = tuple(replace(one, share=one.ms / latency) for one in times)
    lines = tuple(Line(f"layer{index}", f"net.py:{index + 1}") for index in range(count))
    one = Profiled("eager", "python", latency, times=times, outside_ms=outside)
    text = profile.render(replace(_profile(1), lines=lines, variants=(one,)), Path("out"), top)
    table = text.partition("GFLOP")[2].partition("latency")[0]
    shares = [float(word[:-1]) for line in table.splitlines() for word in line.split()[:9] if word.endswith("%")]
    assert len(shares) == min(top, count) + 2 + (top < count)
    assert sum(shares) == pytest.approx(100, abs=2)


def _events(steps: Steps) -> list[dict[str, Any]]:
    found = _profile(1)
    events = json.loads(profile_traces.chrome(found, found.variants[0], steps))["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def test_events_nest_and_stay_inside_the_call() -> None:
    """Even if the recorder of the steps took longer than the call."""
    names = ["", "a", "a.b", "a.b", "a.c", "d.0", "d.1.e", "a.b"]
    steps = tuple(
        Step(f"aten::op{index}", 1000 + 40.1 * index, 12.3, device_us=30.7, origins=(Origin(name, "net.py:1"),))
        for index, name in enumerate(names)
    )
    events = _events(Steps(steps, 120.0))
    (call,) = (event for event in events if event["name"] == "ProfilerStep#0")
    assert [event["dur"] for event in events if event["cat"] == "cpu_op"] == pytest.approx([12.3] * 8, abs=0.01)
    assert len([event for event in events if event["cat"] == "kernel"]) == 8
    for thread in {event["tid"] for event in events}:
        opened: list[float] = []
        for event in sorted((one for one in events if one["tid"] == thread), key=lambda one: (one["ts"], -one["dur"])):
            end = event["ts"] + event["dur"]
            while opened and opened[-1] <= event["ts"]:
                opened.pop()
            assert not opened or end <= opened[-1]
            assert call["ts"] <= event["ts"] <= end <= call["ts"] + call["dur"]
            opened.append(end)
    modules = [event["name"].removeprefix("nn.Module: ") for event in events if event["cat"] == "python_function"]
    assert sorted(modules) == ["a", "a", "a.b", "a.b", "a.c", "d", "d.0", "d.1", "d.1.e"]


def test_steps_inside_the_call_keep_their_times() -> None:
    spans, call_us = profile_traces.timeline(_steps())
    assert (spans, call_us) == ([(0.0, 60.0), (60.0, 110.0)], 110.0)  # the call alone was shorter than its steps
    spans, call_us = profile_traces.timeline(replace(_steps(), duration_us=120.0))
    assert (spans, call_us) == ([(5.0, 65.0), (70.0, 120.0)], 120.0)
    spans, call_us = profile_traces.timeline(replace(_steps(), duration_us=200.0))
    assert (spans, call_us) == ([(10.0, 70.0), (80.0, 130.0)], 200.0)


def test_a_trace_has_the_work_of_a_line_in_one_module() -> None:
    origin = Origin("layers.3.dense", f"{__file__}:1")
    step = Step("aten::linear", 0.0, 5.0, origins=(origin, Origin(HOSTILE, "/gone/net.py:3")))
    (event,) = (event for event in _events(Steps((step,), 9.0)) if event["cat"] == "cpu_op")
    assert event["args"]["module"] == f"layers.3.dense; {SHOWN}"
    assert event["args"]["bytes of the lines"] == 2e6
    assert event["args"]["FLOP of the lines"] is None  # that of the second line is unknown
    assert event["args"]["Call stack"].startswith(f"{__file__}(1): layers.3.dense;")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match="file"):
        profile.write(_profile(1), {}, tmp_path / "file" / "out")


def test_an_earlier_profile_is_removed_and_nothing_else(tmp_path: Path) -> None:
    profile.write(_profile(2), {"eager": _steps(), "compile:backend=1": _steps()}, tmp_path)
    (tmp_path / "mine.trace.json").touch()
    profile.write(_profile(1), {"eager": _steps()}, tmp_path)
    assert sorted(one.name for one in (tmp_path / "tensorboard").iterdir()) == ["eager"]
    assert sorted(one.name for one in tmp_path.glob("*.trace.json")) == ["eager.trace.json", "mine.trace.json"]
