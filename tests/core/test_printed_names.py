"""Untrusted names are printed as plain text, without effect on a terminal or in Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.manifests import CONTRACT, failed, manifest, variant

from exporter import report
from exporter.core.contract_records import TensorSpec
from exporter.core.size_range import Range
from exporter.report import console, explanation, markdown
from exporter.workers.explain import Explanation, Finding, Section

ESCAPE = "\x1b]0;title\x07\x1b[2J\x9b1m\u202e"
HTML = "<img src=x onerror=alert(1)>"
EVIL = f"a{ESCAPE}{HTML}\n# not a heading\n[click](http://example.invalid)|`b"


@pytest.mark.parametrize("form", ["table", "md"])
def test_every_name_of_a_report(form: str) -> None:
    """The manifest does not come from JSON, as at the end of an export."""
    contract = replace(CONTRACT, inputs=(TensorSpec(EVIL, "float32", ("batch", 4)),), symbols={"batch": Range(1, 8)})
    rows = (
        replace(variant("trace"), name=f"trace{EVIL}", notes=(EVIL,), contract=contract),
        replace(failed("script", reason=EVIL), remedy=EVIL, reproduce=f"exporter export '{EVIL}'"),
    )
    made = manifest(*rows)
    made = replace(
        made,
        model=replace(made.model, name=EVIL, weights=EVIL, sizes={EVIL: 3}),
        command=f"exporter export '{EVIL}'",
        warnings=(EVIL,),
        device=f"cuda{EVIL}",
        environment={"cpu": EVIL},
        contract=contract,
    )
    text = report.render(made, form)
    assert not {c for c in text if c != "\n" and not c.isprintable()}
    if form == "md":
        outside = [re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", line) for line in text.splitlines()]
        assert "exporter export" not in "".join(outside)  # it is inside a code span
        assert not any("<img" in line or "](" in line or line.startswith("# ") for line in outside)


def test_code_in_markdown_keeps_its_backticks() -> None:
    assert markdown.code("plain") == "`plain`"
    assert markdown.code("a`b``c") == "```a`b``c```"
    assert markdown.code("`a") == "`` `a ``"


def test_tables_of_a_release() -> None:
    text = console.table(("step", "gates"), [(EVIL, "parity")])
    assert not {c for c in text if c != "\n" and not c.isprintable()}


def test_an_explanation() -> None:
    found = Explanation(EVIL, "cpu", {EVIL: 1}, CONTRACT, (Section("trace", (Finding("bad", EVIL, EVIL, EVIL),)),))
    text = explanation.render(found)
    assert not {c for c in text if c != "\n" and not c.isprintable()}


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    from exporter.cli._progress import LiveLines, PlainLines

    PlainLines().stage(EVIL, EVIL)
    PlainLines().done(replace(variant("trace"), name=EVIL, reason=EVIL))
    lines = LiveLines()
    lines.stage(EVIL, "time [/]")  # also test rich's own markup
    text = capsys.readouterr().err + str([cell for column in lines.render().columns for cell in column.cells])
    assert not {c for c in text if c != "\n" and not c.isprintable()}
