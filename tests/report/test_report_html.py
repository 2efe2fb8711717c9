"""The HTML report: its text, and how a browser renders it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.manifests import CONTRACT, EAGER, EXACT, MANIFEST, failed, manifest, timing, variant

from exporter import report
from exporter.bundle import layout
from exporter.core import filesystem
from exporter.core.json_codec import to_json
from exporter.core.parity_records import CaseParity, Parity
from exporter.core.records import ArtifactRecord, Lifecycle, Manifest, SessionRecord
from exporter.core.timing_records import MachineLoad, Timing
from exporter.report import html, rows

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM = "there is no chromium (apt-get install chromium)"
CUT_OFF = """[...document.querySelectorAll('svg text')].filter(text => {
  const [own, drawn] = [text, text.ownerSVGElement].map(one => one.getBoundingClientRect());
  return /^[0-9.]+$/.test(text.textContent) && (own.left < drawn.left || own.right > drawn.right);
}).map(text => text.textContent)"""  # numbers of axes
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)> $\\frac{ \"'&amp;"


class Page(HTMLParser):
    """A parsed page: its tags with attributes, and its tables by caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._cells: list[list[str]] = []
        self._part: list[str] = []
        self._last = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._last = tag
        if tag in ("caption", "th", "td"):
            self._part = []
        elif tag == "tr":
            self._cells.append([])

    def handle_data(self, data: str) -> None:
        if self._last not in ("style", "title"):
            self.words.append(data)
        self._part.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "caption":
            self._cells = self.tables["".join(self._part)] = []
        elif tag in ("th", "td"):
            self._cells[-1].append("".join(self._part))

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


def page(*found: Manifest, place: Path = Path("artifacts/toy")) -> Page:
    return Page(html.render([(one, place) for one in found]))


def samples_of(timing: Timing, count: int) -> list[list[float]]:
    draw = random.Random(0)
    return [[timing.median_ms * draw.lognormvariate(0, 0.1)] for _ in range(count)]


def write(place: Path, found: Manifest, count: int = 60) -> Manifest:
    """Write a bundle with this manifest and `count` samples for each session."""
    place.mkdir()
    samples = {f"{v.name} {s}": samples_of(t, count) for v in found.variants for s, t in v.timings.items()}
    (place / layout.SAMPLES).write_text(json.dumps(samples))
    found = dataclasses.replace(found, samples=layout.record(place / layout.SAMPLES))
    filesystem.write_atomic(place / layout.MANIFEST, report.render(found, "json"))
    return found


def both(name: str, median: float, **changes: Any) -> Any:
    """Return a variant that was timed in both languages."""
    made = variant(name, median, **changes)
    native = dataclasses.replace(made.sessions[0], session="native")
    timings = {"python": timing(median), "native": timing(median * 0.9, stable=False)}
    return dataclasses.replace(made, sessions=(*made.sessions, native), timings=timings)


SMALL = ArtifactRecord("trace.pt", 1_000_000, "0" * 64)
WRONG = Parity("FAIL", 1.0, 2.0, 99.0, 0.5, "output[0]", "batch is fixed at 2", 5)
MAIN = manifest(
    EAGER,
    both("trace", 5.0, artifact=SMALL, notes=("opset 20",), warnings=("model.py:3: might be incorrect",)),
    both("compile:max-autotune-no-cudagraphs", 4.0, artifact=None),
    both("onnx", 3.0),
    variant("export", 2.0, status="failed", parity=WRONG, fixed=("batch is fixed at 2",), reason="batch is fixed at 2"),
    failed(),
    warnings=("random weights",),
)  # fmt: skip


@pytest.fixture(scope="module")
def main_page() -> Page:
    """The page for MAIN alone."""
    return page(MAIN)


# The text


def test_the_tables_have_the_manifests_numbers(main_page: Page) -> None:
    tables = main_page.tables
    assert tables["Every variant in every session"] == [*map(list, (rows.headings(MAIN), *rows.rows(MAIN)))]
    assert tables["What an artifact costs before its first request"] == [*map(list, rows.lifecycle(MAIN))]
    assert ["onnx", "native", "2.70", "2.60 to 2.80", "2.97", "3.24", "2.43", "4.05", "1000", "0"] in tables[
        "Milliseconds per call"
    ]
    assert ["onnx", "native", "3.70x", "3.67x to 3.74x"] in tables["Times as fast as eager"]
    assert ["trace", "python", "exact", "0.0e+00", "0.0e+00", "1.000000", "1.00", "5", EXACT.worst] in tables[
        "Outputs against the reference"
    ]
    assert ["trace", "native", "4.50 ms", "1 MB", "yes"] in tables["Latency and size"]
    assert ["torch", "2.14.1"] in tables["Environment of the measurements"]


def test_each_output_at_each_case() -> None:
    parts = (CaseParity("batch=2", 0, "output", "rounding", 1.5e-6), CaseParity("batch=7", 1, "", "FAIL"))
    judged = variant("onnx", 3.0)
    session = dataclasses.replace(judged.sessions[0], parity=dataclasses.replace(EXACT, parts=parts))
    found = page(manifest(EAGER, variant(), dataclasses.replace(judged, sessions=(session,))))
    assert found.tables["Each output at each case"] == [
        ["case", "output", "onnx python"],
        ["batch=2 seed 0", "output", "rounding 1.5e-06"],
        ["batch=7 seed 1", "-", "FAIL"],
    ]


def test_the_break_even_is_drawn_and_described() -> None:
    live = variant("compile:default", 5.0, artifact=None, lifecycle=Lifecycle(first_call_ms=12_000.0))
    slow = variant("export", 10.2)
    found = page(manifest(EAGER, both("trace", 5.0), slow, live, variant("wrong", 1.0, status="failed")))
    assert "trace: 310 calls; export: never; compile:default: 2,400 calls. The table below" in found.text
    assert found.text.count("trace: 310 calls") == 2 + 1, (
        "once in the description of each figure, and once in the wide figure"
    )
    assert ["trace", "native", "0.20 s", "12.0 ms", "300 MB", "310 calls"] in found.tables[
        "What an artifact costs before its first request"
    ]
    assert "b1-break-even" not in html.render([(manifest(slow, variant(), baseline="export"), Path("toy"))])


def test_the_verdict_comes_first(main_page: Page) -> None:
    verdict = "toy 3 of 5 variants passed; failed: export, script. Ship onnx.pt: 2.70 ms in C++, 3.70x eager. Next: "
    assert main_page.text.startswith(verdict)


def test_failures_notes_and_warnings(main_page: Page) -> None:
    text = main_page.text
    for words in (
        "script failed at export TorchScript has no cond Remedy: write the branch otherwise",
        "exporter export toy --targets script",
        "logs/script.log",
        "Dynamic sizes: batch from 1 to 8. export batch is fixed at 2",
        "trace opset 20 model.py:3: might be incorrect",
        "Warning: random weights",
        "batch=2 seed 1",
    ):
        assert words in text


def test_an_unchecked_variant_does_not_look_right() -> None:
    unchecked = dataclasses.replace(failed("trace", "the run ended before"), stage="not checked")
    found = dataclasses.replace(MAIN, variants=(unchecked,), status="interrupted")
    text = html.render([(found, Path("artifacts/toy"))])
    assert "trace was not checked" in Page(text).text
    assert '<td class="word fair">not checked</td>' in text


def test_the_structure_of_the_page(main_page: Page) -> None:
    found = main_page
    assert found.tags[0] == ("html", {"lang": "en"})
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert len(found.all("id")) == len(set(found.all("id")))
    named = " ".join(found.all("aria-labelledby") + found.all("aria-describedby")).split()
    assert set(named) <= set(found.all("id"))
    assert {scope for tag, attributes in found.tags if tag == "th" for scope in (attributes.get("scope"),)} == {
        "col",
        "row",
    }


def test_the_page_loads_nothing_and_runs_no_scripts() -> None:
    text = html.render([(MAIN, Path("toy"))])
    found = Page(text)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "image"})
    assert found.all("src") == []
    assert all(link.startswith("#") for link in found.all("href") + found.all("xlink:href"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_strings_are_escaped() -> None:
    model = dataclasses.replace(MANIFEST.model, name=HOSTILE)
    contract = dataclasses.replace(CONTRACT, inputs=(), outputs=(), symbols={HOSTILE: CONTRACT.symbols["batch"]})
    found = page(
        manifest(
            EAGER,
            variant(HOSTILE, notes=(HOSTILE,), fixed=(HOSTILE,), parity=dataclasses.replace(EXACT, worst=HOSTILE)),
            variant("onnx"),
            failed(HOSTILE, HOSTILE, remedy=HOSTILE, reproduce=HOSTILE, stage=HOSTILE, log=HOSTILE),
            environment={HOSTILE: HOSTILE},
            warnings=(HOSTILE,),
            contract=contract,
        ),
        place=Path(HOSTILE),
    )
    renamed = dataclasses.replace(manifest(variant()), model=model, command=HOSTILE)
    renamed = page(renamed, renamed)
    for one in (found, renamed):
        assert {tag for tag, _ in one.tags}.isdisjoint({"script", "img"})
        assert one.all("onerror") == []
        assert " ".join(HOSTILE.split()) in one.text


def test_the_page_of_many_samples_is_small(tmp_path: Path) -> None:
    variants = (both(name, 5.0 + number) for number, name in enumerate(("trace", "script", "compile", "onnx", "more")))
    found = write(tmp_path / "toy", manifest(EAGER, *variants), count=5000)
    assert len(html.render([(found, tmp_path / "toy")]).encode()) < 500_000


# Samples


def test_densities_are_drawn_from_the_recorded_samples(tmp_path: Path) -> None:
    found = write(tmp_path / "toy", MAIN)
    shown = page(found, place=tmp_path / "toy")
    assert "the hill the density of the samples" in shown.text
    assert (
        sum("FillBetween" in name for name in shown.all("id")) == 2 * 8
    )  # sessions, in the wide and in the narrow figure


def alter(place: Path) -> None:
    text = (place / layout.SAMPLES).read_text()
    (place / layout.SAMPLES).write_text(text.replace("1", "2"))


def refill(text: str):
    def act(place: Path) -> ArtifactRecord:
        (place / layout.SAMPLES).write_text(text)
        return layout.record(place / layout.SAMPLES)

    return act


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (alter, "SHA-256 differs"),
        (lambda place: (place / layout.SAMPLES).unlink(), "is missing"),
        (refill("[1, 2"), "Expecting"),
        (refill("[1, 2]"), "no attribute"),
        (refill('{"trace python": [[1.0], "x"]}'), "could not convert"),
        (refill('{"trace python": []}'), "need at least one array"),
        (refill(f'{{"trace python": [[{"9" * 401}]]}}'), "too large"),
        (lambda _: ArtifactRecord(layout.SAMPLES, 1 << 40, "0" * 64), "is larger than 268 MB"),
    ],
    ids=["altered", "missing", "cut", "list", "words", "empty", "digits", "large"],
)
def test_invalid_samples_are_not_drawn(tmp_path: Path, change: Any, words: str) -> None:
    place, few = tmp_path / "toy", manifest(EAGER, variant())
    found = write(place, few)
    recorded = change(place) or found.samples
    shown = page(dataclasses.replace(found, samples=recorded), place=place)
    assert "The samples are not shown" in shown.text
    assert words in shown.text
    assert not any("FillBetween" in name for name in shown.all("id"))
    assert shown.tables == page(few).tables, "the tables use the manifest's intervals"


def test_outliers_are_counted_not_drawn(tmp_path: Path) -> None:
    found = write(tmp_path / "toy", manifest(EAGER))
    record = refill(json.dumps({"eager python": [[10.0 + n / 100 for n in range(60)] + [10_000.0]]}))(tmp_path / "toy")
    shown = page(dataclasses.replace(found, samples=record), place=tmp_path / "toy")
    assert "1 of 61 samples are above 10.6 ms" in shown.text


# Several bundles, and sparse ones


def test_several_bundles_are_compared_first() -> None:
    other = dataclasses.replace(MAIN, model=dataclasses.replace(MAIN.model, name="other"))
    found = Page(html.render([(MAIN, Path("a")), (other, Path("b")), (manifest(failed()), Path("c"))]))
    assert next(iter(found.tables.values())) == [
        ["bundle", "model", "device", "ship", "latency", "speed-up", "size", "parity", "passed"],
        ["a", "toy", "cpu", "onnx.pt", "2.70 ±0.10 ms ~ in C++", "3.70x eager", "1.23 MB", "exact", "3 of 5"],
        ["b", "other", "cpu", "onnx.pt", "2.70 ±0.10 ms ~ in C++", "3.70x eager", "1.23 MB", "exact", "3 of 5"],
        ["c", "toy", "cpu", "-", "-", "-", "-", "-", "0 of 1"],
    ]
    assert {link for link in found.all("href") if link.startswith("#b")} >= {"#b1", "#b2", "#b3"}
    assert {"b1", "b2", "b3"} <= set(found.all("id"))
    assert len(found.all("id")) == len(set(found.all("id")))


def test_nothing_looks_recommended_after_a_disturbed_timing() -> None:
    busy = MachineLoad(cpus=2, others=0.6, steal=0.0, throttled=0.0, hot=0, load=3.0)
    calm, disturbed = (html.render([(dataclasses.replace(MAIN, machine=one), Path("a"))]) for one in (None, busy))
    bold = re.compile(r"font-weight: 700[^>]*>\s*onnx in C\+\+")
    assert bold.search(calm)
    assert not bold.search(disturbed)
    assert "Time it again on a quiet machine: <code>exporter bench BUNDLE --wait-quiet 600</code>." in disturbed
    compared = Page(html.render([(dataclasses.replace(MAIN, machine=busy), Path("a")), (MAIN, Path("b"))]))
    _, first, second = next(iter(compared.tables.values()))
    assert (first[3], second[3]) == ("-", "onnx.pt")


@pytest.mark.parametrize(
    "found",
    [
        manifest(golden=None, contract=None, environment={}, status="interrupted"),
        manifest(failed()),
        manifest(variant(median=None)),
        manifest(variant(timings={"python": timing(5.0, speedup=None, speedup_ci95=None)})),
        manifest(variant(timings={"python": timing(1e-300, 0.0)}), variant("b", 0.1)),
        manifest(EAGER, variant(lifecycle=Lifecycle(0.0), sessions=(SessionRecord("python", "passed"),))),
        manifest(EAGER, variant(median=9.9, lifecycle=Lifecycle(1e9))),
        manifest(variant("eager", timings={"python": dataclasses.replace(timing(1.0), median_ms=0.0)}), variant()),
    ],
    ids=["nothing", "failed", "untimed", "no speed-up", "no time", "no build", "a long build", "no time of eager"],
)
def test_sparse_manifests_can_be_rendered(found: Manifest) -> None:
    assert "toy" in page(found).text


def test_the_command_prints_the_page_and_does_not_change_the_bundle(cli, tmp_path: Path) -> None:
    write(tmp_path / "toy", MAIN)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = cli("report", tmp_path / "toy", "--format", "html", "--goal", "size")
    assert done.code == 0, done.err
    assert done.out.startswith("<!doctype html>")
    assert done.out.endswith("</html>\n")
    assert "Ship trace.pt" in done.out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_several_bundles_in_other_formats(cli, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, MAIN)
    assert cli("report", tmp_path / "a", tmp_path / "b", "--format", "md").out.count("### toy") == 2
    done = cli("report", tmp_path / "a", tmp_path / "b", "--format", "json")
    assert done.code == 2
    assert "one BUNDLE at a time" in done.err
    assert cli("report").code == 2


# Colours


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2.2 defines it."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(scheme: int) -> None:
    style = (Path(html.__file__).parent / "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = {name: luminance(colour) for name, colour in re.findall(r"--(\w+): (#\w+);", block)}
    for name in ("ink", "muted", "accent", "good", "fair", "bad"):
        for ground in ("paper", "raised"):
            dark, light = sorted((colours[name], colours[ground]))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


# The browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files with the pages of one bundle and of two."""
    folder = tmp_path_factory.mktemp("pages")
    found = [(write(folder / name, MAIN), folder / name) for name in ("a", "b")]
    for count in (1, 2):
        (folder / f"{count}.html").write_text(html.render(found[:count]))
    return [folder / "1.html", folder / "2.html"]


@pytest.mark.parametrize(
    ("bundles", "width", "scheme"),
    [(1, 1280, "light"), (1, 360, "dark"), (2, 1280, "dark"), (2, 360, "light")],
)
def test_in_a_browser(browser: Any, written: list[Path], bundles: int, width: int, scheme: str) -> None:
    place = written[bundles - 1].as_uri()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    view = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
    said: list[str] = []
    asked: list[str] = []
    view.on("console", lambda message: said.append(message.text))
    view.on("pageerror", lambda error: said.append(str(error)))
    view.on("request", lambda request: asked.append(request.url))
    view.goto(place)
    loaded = view.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"loaded in {loaded:.0f} ms")
    assert said == []
    assert asked == [place]
    assert view.evaluate("document.documentElement.scrollWidth") <= width, "only tables scroll horizontally"
    assert view.locator("svg:visible").count() == view.locator("figure").count()
    assert view.evaluate(CUT_OFF) == []
    table = view.locator("table", has_text="Every variant").first
    shown = table.evaluate("table => [...table.rows].map(row => [...row.cells].map(cell => cell.innerText))")
    assert shown == [*map(list, (rows.headings(MAIN), *rows.rows(MAIN)))]
    violations = axe.Axe().run(view).response["violations"]
    assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in violations] == []
    view.close()


def test_printed_pages_show_all_details(browser: Any, written: list[Path]) -> None:
    view = browser.new_page()
    view.goto(written[0].as_uri())
    shown = "[...document.querySelectorAll('details li')].map(item => item.checkVisibility())"
    assert not all(view.evaluate(shown))
    view.emulate_media(media="print")
    assert all(view.evaluate(shown))
    view.close()


def test_the_keyboard_reaches_scrollable_tables(browser: Any, written: list[Path]) -> None:
    view = browser.new_page(viewport={"width": 360, "height": 800})
    view.goto(written[0].as_uri())
    reached = set()
    for _ in range(60):
        view.keyboard.press("Tab")
        reached.add(view.evaluate("document.activeElement.getAttribute('aria-labelledby')"))
    named = "[...document.querySelectorAll('.scroll')].map(item => item.getAttribute('aria-labelledby'))"
    assert set(view.evaluate(named)) <= reached
    view.close()


def test_the_command_that_times_a_page(written: list[Path]) -> None:
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    command = Path(__file__).parents[2] / "benchmarks" / "page.py"
    done = subprocess.run(
        [sys.executable, command, written[0].with_name("a"), "--loads", "1"], capture_output=True, text=True
    )
    assert "ok    size of the page" in done.stdout, done.stderr
    assert "slowest load, seconds: " in done.stdout


def test_nothing_is_said_without_a_home(tmp_path: Path) -> None:
    """Matplotlib cannot make its folder there, and says so, though it finds another one."""
    (tmp_path / "toy").mkdir()
    filesystem.write_atomic(tmp_path / "toy" / layout.MANIFEST, to_json(MANIFEST))
    (tmp_path / "file").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    command = [sys.executable, "-P", "-m", "exporter", "report", tmp_path / "toy", "--format", "html"]
    done = subprocess.run(
        command, env=kept | {"HOME": str(tmp_path / "file" / "home")}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("<!doctype html>")
