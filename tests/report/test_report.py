"""Reports of handwritten manifests."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.manifests import CONTRACT, EAGER, EXACT, MANIFEST, failed, manifest, timing, variant

from exporter import report
from exporter.core import tolerances
from exporter.core.contract_records import KeptState, StateTensor
from exporter.core.json_codec import from_json, to_json
from exporter.core.parity_records import Parity
from exporter.core.records import ArtifactRecord, Goal, Lifecycle, Manifest, SessionRecord, VariantRecord
from exporter.report import comparison, console, rows, summary

FORMS = ("table", "json", "md")


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch):
    """Set the width of the terminal."""

    def act(count: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(count))
        monkeypatch.setenv("TERM", "dumb")

    return act


def both_languages(**changes):
    session = variant().sessions[0]
    native = dataclasses.replace(session, session="native")
    return variant(sessions=(session, native), timings={"python": timing(5.0), "native": timing(4.0)}, **changes)


def test_every_format_ends_with_one_newline() -> None:
    for form in FORMS:
        text = report.render(MANIFEST, form)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_json_is_the_manifest() -> None:
    assert from_json(Manifest, report.render(MANIFEST, "json")) == MANIFEST


def test_the_table_names_the_model_and_the_machine() -> None:
    text = report.render(MANIFEST, "table", Path("artifacts/toy"))
    for words in ("toy (1.5 M parameters, random weights), batch 2", "A Fine CPU, 2 threads, avx2", "torch 2.14.1"):
        assert words in text
    assert "parity over 3 cases against eager in float64, rtol 0.0001, atol 1e-05" in text
    assert "Bundle: artifacts/toy" in text


def test_the_table_states_the_tolerances_of_all_dtypes() -> None:
    assert MANIFEST.golden is not None
    others = {"float32": tolerances.FLOAT32, "bf16": tolerances.BY_PRECISION["bf16"]}
    golden = dataclasses.replace(MANIFEST.golden, tolerance=tolerances.FLOAT64, tolerances=others)
    text = report.render(dataclasses.replace(MANIFEST, golden=golden), "json")
    assert from_json(Manifest, text).golden == golden
    text = " ".join(report.render(dataclasses.replace(MANIFEST, golden=golden), "table").split())
    assert "rtol 1e-07, atol 1e-08, rtol 0.0001, atol 1e-05 for float32; eager's own error" in text


@pytest.mark.parametrize(("count", "text"), [(812, "812"), (20_937, "20.9 k"), (109_482_240, "109.5 M")])
def test_the_number_of_parameters(count: int, text: str) -> None:
    manifest = dataclasses.replace(MANIFEST, model=dataclasses.replace(MANIFEST.model, parameters=count))
    assert f"({text} parameters," in report.render(manifest, "table")


@pytest.mark.parametrize(
    ("device", "name"), [("cuda", "H200"), ("cuda:0", "H200"), ("cuda:1", "L4"), ("cuda:2", "GPU")]
)
def test_the_heading_names_the_gpu_that_was_measured(device: str, name: str) -> None:
    found = dataclasses.replace(manifest(variant(), environment={"gpu0": "H200", "gpu1": "L4"}), device=device)
    assert f"{device}: {name}, " in report.render(found, "table")


@pytest.mark.parametrize(
    ("kept", "entries", "hint"),
    [
        (None, (), "  find the operator: exporter bisect BUNDLE trace\n"),
        ("outside", (), "  find the operator: exporter bisect BUNDLE trace\n"),
        ("inside", (), "  find the operator: export with --state inputs, then exporter bisect BUNDLE trace\n"),
        (None, ({"batch": 2},), ""),
    ],
)
def test_a_rejected_artifact_is_to_be_bisected_if_bisect_takes_it(
    kept: Any, entries: tuple[dict[str, int], ...], hint: str
) -> None:
    state = KeptState(kept, (StateTensor("sum", "float32", (4,), 0),)) if kept else None
    contract = dataclasses.replace(CONTRACT, state=state, entries=entries)
    row = failed("trace", rejected=(ArtifactRecord("rejected/trace.pt", 9, "0" * 64),), contract=contract)
    text = report.render(manifest(row, contract=contract), "table")
    assert hint in text
    assert ("bisect" in text) == bool(hint)


def test_the_table_at_120_columns() -> None:
    text = report.render(manifest(EAGER, both_languages(), failed()), "table")
    assert "5.00 ±0.10 ms" in text
    assert "4.50…7.50" in text
    assert "2.00x" in text
    assert "1.23 MB" in text
    assert "1.5 s" in text
    assert "native" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("median", "half", "told"),
    [
        (5.0, 0.1, "5.00 ±0.10 ms"),
        (0.43, 0.0012, "0.43 ±0.01 ms"),
        (123.4, 0.3, "123 ±1 ms"),
        (10.0, 0.0, "10.0 ±0.0 ms"),
    ],
)
def test_an_interval_has_the_decimals_of_its_median(median: float, half: float, told: str) -> None:
    timed = variant(timings={"python": timing(median, half)})
    assert told in report.render(manifest(EAGER, timed), "table")


def test_a_pipe_is_not_colored() -> None:
    assert "\x1b" not in report.render(MANIFEST, "table")


def test_a_terminal_of_80_columns_shows_the_important_columns(columns) -> None:
    columns(80)
    text = report.render(manifest(EAGER, both_languages(), variant("onnx")), "table")
    table = [line for line in text.splitlines() if "±" in line]
    assert len(table) == 4
    for words in ("5.00 ±0.10 ms", "2.00x", "exact", "1.23 MB", "native"):
        assert words in text
    assert "min…max and runs need a terminal of at least 100 columns" in text
    assert text.count("min…max") == 1


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_narrow_terminals_cut_nothing_off(width: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    line = ("compile:max-autotune@bf16", "native", "compatible", "exact → rounding", "437 MB → 12 MB")
    line += ("12.34 → 11.22 ms", "0.58x (0.57…0.59)")
    text = console.table(comparison.HEADINGS, [line])
    assert max(map(len, text.splitlines())) <= width
    written = "".join([*comparison.HEADINGS, *line]).replace(" ", "")
    assert sorted(text.translate({ord(c): None for c in " ─\n"})) == sorted(written)


@pytest.mark.parametrize("width", [1, 20])
def test_a_terminal_that_is_too_narrow_counts_as_one_of_40_columns(width: int, monkeypatch) -> None:
    """With one column the report was empty lines."""
    monkeypatch.setenv("COLUMNS", "40")
    expected = report.render(MANIFEST, "table")
    monkeypatch.setenv("COLUMNS", str(width))
    assert report.render(MANIFEST, "table") == expected


def test_an_unchecked_variant_is_not_said_to_have_failed() -> None:
    """The run was killed between its export and its check. It has not passed either."""
    unchecked = dataclasses.replace(failed("trace", "the run ended before"), stage="not checked")
    found = dataclasses.replace(manifest(failed(), unchecked), status="interrupted")
    for form in ("table", "md"):
        text = " ".join(report.render(found, form).split()).replace("*", "")
        assert "trace was not checked: the run ended before" in text
        assert "0 of 2 variants passed; failed: script; not checked: trace." in text
        assert "FAIL (export)" in text
        assert "FAIL (not checked)" not in text
    assert summary.choices(found) == []


def test_a_change_has_the_colour_of_its_new_value(columns, monkeypatch) -> None:
    columns(120)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for change, colour in (("drift → exact", "32"), ("exact → drift", "33"), ("exact → FAIL", "1;31")):
        assert f"\x1b[{colour}m{change}" in console.table(("variant", "parity"), [("trace", change)])


def test_failures_are_shown_with_remedy_and_command() -> None:
    for form in ("table", "md"):
        text = report.render(MANIFEST, form)
        for words in ("script", "failed at export", "TorchScript has no cond", "write the branch otherwise"):
            assert words in text
        assert "exporter export toy --targets script" in text


def test_a_model_that_cannot_be_prepared_is_one_failure() -> None:
    """Every variant fails for the same reason, which is not repeated; other failures keep their own blocks."""
    alike = {"status": "failed", "timings": {}, "sessions": ()}
    prepare = {**alike, "stage": "prepare", "reason": "load() raises: no weights", "remedy": "get them"}
    names = "trace", "script", "onnx@bf16"
    found = manifest(*(variant(name, **prepare, reproduce=f"exporter export m --targets {name}") for name in names))
    for form in ("table", "md", "html"):
        text = report.render_all([(found, Path("toy"))], form)
        assert text.count("load() raises: no weights") == text.count("get them") == 1
        assert text.count("--targets trace") == 1
        assert all(name in text for name in names)
    assert "trace, script, onnx@bf16 failed at prepare" in report.render(found, "table")
    found = manifest(*(variant(name, **alike, stage="export", reason="not supported") for name in names))
    assert report.render(found, "table").count("not supported") == 3


def test_a_failed_session_names_its_stage() -> None:
    session = SessionRecord("native", "failed", "load", "was ended by SIGILL")
    text = report.render(manifest(variant(status="failed", sessions=(session,), timings={})), "table")
    assert "FAIL (load)" in text


def test_notes_and_warnings() -> None:
    text = report.render(manifest(variant(notes=("scripted natively",)), warnings=("random weights",)), "table")
    assert "trace: scripted natively" in text
    assert "warning: random weights" in text


def test_square_brackets_are_not_markup() -> None:
    text = report.render(manifest(failed(reason="[red]boom[/] at [0, 1]")), "table")
    assert "[red]boom[/] at [0, 1]" in text


def test_markdown_escapes_table_syntax() -> None:
    text = report.render(manifest(failed(name="a|b", reason="<script> | alert")), "md")
    assert "| a\\|b |" in text
    assert "&lt;script> \\| alert" in text


def test_markdown_rows_have_as_many_cells_as_the_heading() -> None:
    first, *others = report.render(MANIFEST, "md").split("\n\n|")[1:]
    for table, headings, count in (first, rows.headings(MANIFEST), 3), (others[0], rows.lifecycle(MANIFEST)[0], 1):
        lines = [f"|{line}" if not i else line for i, line in enumerate(table.split("\n\n")[0].splitlines())]
        assert {line.count("|") for line in lines} == {len(headings) + 1}
        assert len(lines) == 2 + count


def test_an_interrupted_run_is_reported() -> None:
    for form in ("table", "md"):
        text = report.render(manifest(variant(), status="interrupted"), form)
        assert "interrupted" in text.replace("toy.interrupted", "")


def hints(*variants, **changes) -> str:
    return "\n".join(rows.hints(manifest(*variants, **changes)))


def test_hints_name_a_remedy() -> None:
    unstable = variant(timings={"python": timing(5.0, stable=False)})
    assert "--time-budget" in hints(unstable)
    assert "`exporter runner build`" in hints(variant(), environment={"exporter-run": "none"})
    assert "install g++" in hints(variant(), environment={"exporter-run": "none", "compiler": "none"})
    assert hints(variant(), environment={"exporter-run": "none: X; Y"}) == "no C++ rows: X; Y"
    assert "C++" not in hints(variant(), environment={"exporter-run": "/usr/bin/exporter-run"})
    assert "~" in rows.rows(manifest(unstable))[0][2]


def sentence(*variants, **changes) -> str:
    return " ".join(summary.sentences(manifest(*variants, **changes)))


def test_the_fastest_is_recommended() -> None:
    text = sentence(EAGER, variant("trace", 5.0), variant("onnx", 3.0))
    assert text == "2 of 2 variants passed. Ship onnx.pt: 3.00 ms in Python, 3.33x eager."


def test_the_language_is_named() -> None:
    assert "Ship trace.pt: 4.00 ms in C++" in sentence(EAGER, both_languages())


def test_ties_are_reported() -> None:
    text = sentence(EAGER, variant("trace", 5.0), variant("onnx", 5.15), variant("script", 9.0))
    assert "Ship trace.pt" in text
    assert "(not distinguishable from onnx)" in text


def sized(name: str, median: float, megabytes: int, **changes: Any) -> VariantRecord:
    return variant(name, median, artifact=ArtifactRecord(f"{name}.pt", megabytes * 10**6, "0" * 64), **changes)


def test_the_goal_decides_the_recommendation() -> None:
    rows = (EAGER, sized("onnx", 5.0, 40), sized("compile", 3.0, 50), sized("trace", 4.0, 20))
    assert "Ship compile.pt: 3.00 ms" in sentence(*rows)
    assert "Ship trace.pt: 4.00 ms in Python, 2.50x eager, 20 MB" in sentence(*rows, goal=Goal("size"))
    assert "Ship onnx.pt" in sentence(*rows, goal=Goal("portability"))


SWEPT = manifest(
    dataclasses.replace(EAGER, sweep={"batch=8": {"python": timing(20.0, eager=20.0)}}),
    sized("compile", 3.0, 50, sweep={"batch=8": {"python": timing(16.0, 0.1, 20.0)}}),
    sized("trace", 4.0, 20, sweep={"batch=8": {"python": timing(10.0, 0.1, 20.0, stable=False)}}),
    sized("onnx", 6.0, 10),
    points={"batch=2": {"batch": 2}, "batch=8": {"batch": 8}},
)


def test_a_sweep_has_a_column_for_each_point() -> None:
    assert rows.sweep(SWEPT) == [
        ("variant", "session", "batch 2", "batch 8"),
        ("eager", "python", "10.0 ms, 200/s", "20.0 ms, 400/s"),
        ("compile", "python", "3.00 ms, 667/s", "16.0 ms, 500/s"),
        ("trace", "python", "4.00 ms, 500/s", "10.0 ms ~, 800/s"),
        ("onnx", "python", "6.00 ms, 333/s", "-"),
    ]
    for form in ("table", "md"):
        assert "10.0 ms ~, 800/s" in report.render(SWEPT, form)
    assert rows.sweep(MANIFEST) == []


def test_the_costs_of_an_artifact_before_its_first_request() -> None:
    slow, alike = (variant(name, ms, lifecycle=Lifecycle(1.5)) for name, ms in (("onnx", 10.2), ("export", 10.05)))
    assert rows.lifecycle(manifest(EAGER, variant(), slow, alike)) == [
        ("artifact", "session", "load", "first call", "memory", "pays back"),
        ("trace", "python", "0.20 s", "12.0 ms", "300 MB", "340 calls"),
        ("onnx", "python", "0.20 s", "12.0 ms", "300 MB", "never"),
        ("export", "python", "0.20 s", "12.0 ms", "300 MB", "-"),
    ]
    apart = timing(9.0, half=2.0)  # the intervals of the times overlap, but that of the speed-up excludes 1
    faster = variant("trace", 9.0, lifecycle=Lifecycle(1.5), timings={"python": apart})
    assert rows.lifecycle(manifest(EAGER, faster))[1][-1] == "1,700 calls"
    assert rows.lifecycle(manifest(EAGER, variant("trace", None))) == []
    session = dataclasses.replace(variant().sessions[0], gpu_mb=1234.0)
    on_gpu = dataclasses.replace(manifest(EAGER, variant(sessions=(session,))), device="cuda")
    assert rows.lifecycle(on_gpu)[1][5] == "1.23 GB"
    again = manifest(variant(), variant("onnx", 3.0), baseline="trace")
    assert [line[-1] for line in rows.lifecycle(again)[1:]] == ["-", "-"], "pay-back is measured only against eager"


def test_throughput_is_compared_at_every_point() -> None:
    made = dataclasses.replace(SWEPT, goal=Goal("throughput"))
    assert summary.sentences(made)[1] == "Ship trace.pt at batch=8: 800 items/s, 10.0 ms in Python, 2.00x eager."
    next_best = "Next: compile 667 items/s, 3.00 ms in Python, 50 MB; onnx 333 items/s, 6.00 ms in Python, 10 MB."
    assert next_best in summary.alternatives(made)
    front = [("trace at batch=8", "python", "800", "20 MB"), ("onnx", "python", "333", "10 MB")]
    assert summary.unbeaten(made) == [("variant", "session", "items/s", "size"), *front]
    assert "Ship compile.pt: 3.00 ms" in summary.sentences(SWEPT)[1], "latency is compared at the example"


def test_the_baseline_is_named() -> None:
    made = manifest(sized("onnx", 5.0, 40), sized("trace", 4.0, 20), baseline="onnx")
    for form in ("table", "md"):
        assert "vs onnx" in report.render(made, form)
    assert summary.sentences(made)[1].endswith("2.50x onnx.")


@pytest.mark.parametrize(("value", "text"), [(123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0131, "0.0131")])
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert rows.number(value) == text


@pytest.mark.parametrize(
    ("goal", "shipped", "words"),
    [
        (Goal(max_mb=45), "trace.pt", "the best for latency within size ≤ 45 MB"),
        (Goal(max_p99_ms=1), "", "No artifact meets the limits: p99 ≤ 1 ms"),
        (Goal(min_cosine=0.9999), "trace.pt", "cosine ≥ 0.9999"),
        (Goal(needs="cpp"), "", "runs in C++"),
    ],
)
def test_the_recommendation_respects_bounds(goal: Goal, shipped: str, words: str) -> None:
    crude = Parity("quantized", 0.1, 1.0, 9.0, 0.996, "output[0]")
    text = sentence(EAGER, sized("compile", 3.0, 50, parity=crude), sized("trace", 4.0, 20), goal=goal)
    assert words in text
    assert f"Ship {shipped}" in text if shipped else "Ship" not in text


def test_runners_up_and_unbeaten_variants() -> None:
    made = manifest(EAGER, sized("onnx", 5.0, 40), sized("compile", 3.0, 50), sized("trace", 4.0, 20))
    assert summary.alternatives(made) == [
        "Next: trace 4.00 ms in Python, 20 MB; onnx 5.00 ms in Python, 40 MB.",
    ]
    front = [("compile", "python", "3.00 ms", "50 MB"), ("trace", "python", "4.00 ms", "20 MB")]
    assert summary.unbeaten(made) == [("variant", "session", "median", "size"), *front]
    for form in ("table", "md"):
        shown = report.render(made, form).partition(summary.UNBEATEN)[2]
        assert shown.index("compile") < shown.index("trace")
        assert "onnx" not in shown
    hardly = manifest(EAGER, sized("compile", 3.0, 10_001), sized("trace", 4.0, 10_000))
    assert summary.unbeaten(hardly) == [], "0.1% smaller does not count"
    only = manifest(EAGER, sized("trace", 4.0, 20))
    assert summary.unbeaten(only) == []
    assert summary.UNBEATEN not in report.render(only, "md")
    assert summary.alternatives(manifest(EAGER, sized("trace", 4.0, 20))) == []


def test_a_failed_variant_is_never_recommended() -> None:
    wrong = variant("onnx", 1.0, status="failed", parity=Parity("FAIL", 1.0, 1.0, 9.0, 0.5, "output[0]"))
    text = sentence(EAGER, variant("trace", 5.0), wrong)
    assert text.startswith("1 of 2 variants passed; failed: onnx. Ship trace.pt")


def test_a_variant_without_an_artifact_is_not_recommended() -> None:
    live = variant("compile:default", 1.0, artifact=None)
    assert "Ship trace.pt" in sentence(EAGER, live, variant("trace", 5.0))


def test_no_timings_and_no_passing_variants() -> None:
    assert sentence(variant(median=None)).endswith("Nothing was timed, so nothing is recommended.")
    assert sentence(failed()) == "0 of 1 variants passed; failed: script."


def test_just_in_time_rows_count_their_first_call_as_build() -> None:
    live = variant("compile:default", artifact=None, lifecycle=Lifecycle(first_call_ms=12_000.0))
    assert rows.rows(manifest(live))[0][-1] == "12.0 s"
    assert rows.rows(manifest(EAGER))[0][-1] == "-"


def test_just_in_time_rows_show_their_start_times(columns) -> None:
    cache = ArtifactRecord("compile-max-autotune.cache.zip", 241_000, "0" * 64)
    lifecycle = Lifecycle(first_call_ms=61_000.0, cached_call_ms=3_290.0)
    live = variant("compile:max-autotune-no-cudagraphs", artifact=None, lifecycle=lifecycle, companions=(cache,))
    plain = variant("compile:eager", artifact=None, lifecycle=Lifecycle(first_call_ms=500.0))
    untimed = variant("compile:inductor", None, artifact=None, lifecycle=Lifecycle(first_call_ms=500.0))
    found = manifest(EAGER, variant(), live, plain, untimed)
    assert rows.starts(found) == [
        ("just in time", "cold", "cached", "steady", "cache"),
        ("compile:max-autotune-no-cudagraphs", "61.0 s", "3.29 s", "5.00 ms", "241 kB"),
        ("compile:eager", "0.50 s", "-", "5.00 ms", "-"),
    ]
    columns(80)
    assert "compile:max-autotune-no-cudagraphs  61.0 s  3.29 s  5.00 ms  241 kB" in report.render(found, "table")
    assert "| compile:eager | 0.50 s | - | 5.00 ms | - |" in report.render(found, "md")
    for form in ("table", "md"):
        assert "just in time" not in report.render(MANIFEST, form)


def test_the_provider_is_next_to_the_name() -> None:
    session = dataclasses.replace(variant().sessions[0], provider="CUDA")
    assert rows.rows(manifest(variant("onnx", sessions=(session,))))[0][0] == "onnx [CUDA]"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (438_000_000, "438 MB"), (1.5e9, "1.5 GB")]
)
def test_sizes(count: int, text: str) -> None:
    assert rows.size_of(int(count)) == text


@pytest.mark.parametrize(("value", "text"), [(0.1234, "0.12"), (12.34, "12.3"), (1234.5, "1234")])
def test_numbers(value: float, text: str) -> None:
    assert rows.number(value) == text


def test_an_empty_manifest_can_be_reported() -> None:
    empty = manifest(golden=None, contract=None, environment={}, status="interrupted")
    for form in FORMS:
        assert "toy" in report.render(empty, form)
    json.loads(report.render(empty, "json"))


def test_huge_numbers_can_be_reported() -> None:
    def enlarged(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: enlarged(item) for key, item in value.items()}
        if isinstance(value, list):
            return [enlarged(item) for item in value]
        return 1e100 if isinstance(value, float) else value

    both = manifest(*MANIFEST.variants, both_languages(name="two"))
    for form in (*FORMS, "html"):
        assert "toy" in report.render(from_json(Manifest, json.dumps(enlarged(json.loads(to_json(both))))), form)


def test_a_missing_speedup() -> None:
    row = rows.rows(manifest(variant(timings={"python": timing(5.0, speedup=None)})))[0]
    assert row[5] == "-"
    assert EXACT.verdict in row
