"""The page of a profile: a flame view of each variant on one scale, and the table of lines."""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.core import source_lines
from exporter.core.profile_records import LineTime, Profile, Profiled

ROW = 20  # height of a row of the flame view, in pixels
LEAST = 0.001  # of the widest variant; narrower parts are left out
STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --soft: #5b6675; --page: #ffffff; --edge: #d9dee5; --light: 82%; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ee; --soft: #9aa5b4; --page: #14181e; --edge: #313944; --light: 30%; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); }
body { margin: 2rem auto; padding: 0 1rem; max-width: 75rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { color: var(--soft); margin: .2rem 0; }
.flame { position: relative; overflow: hidden; }
.flame div { position: absolute; height: 19px; font-size: 12px; line-height: 19px; text-indent: 3px;
  box-sizing: border-box; overflow: hidden; white-space: nowrap; text-overflow: ellipsis;
  border-right: 1px solid var(--page); background: hsl(var(--hue) 55% var(--light)); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--edge); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } code { color: var(--soft); }
"""


@dataclass
class _Part:
    """A module or a line, with its time and its parts."""

    name: str
    title: str = ""
    ms: float = 0.0
    parts: dict[str, _Part] = field(default_factory=dict)


def render(found: Profile) -> str:
    """Return the page."""
    timed = [one for one in found.variants if one.latency_ms]
    widest = max((one.latency_ms for one in timed), default=1.0)
    about = f"{found.device}, {found.threads} threads, {found.case}; {found.created}"
    flames = "".join(_flame(found, one, widest) for one in timed)
    failed = "".join(
        f"<p>{_text(one.name)} was not profiled: {_text(one.reason)}</p>" for one in found.variants if one.reason
    )
    advice = "".join(f"<p>{_text(sentence)}</p>" for sentence in found.advice)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Profile of {_text(found.model)}</title><style>{STYLE}</style></head><body>"
        f"<h1>Profile of {_text(found.model)}</h1><p>{_text(about)}</p>{advice}{failed}{flames}{_table(found, timed)}"
        "</body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(source_lines.printable(text))


def _tree(found: Profile, one: Profiled) -> _Part:
    root = _Part(one.name, f"{one.name}: {one.latency_ms:.3f} ms", one.latency_ms)
    for time in one.times:
        line = found.lines[time.line]
        at = root
        for name in filter(None, line.module.split(".")):
            at = at.parts.setdefault(name, _Part(name))
            at.ms += time.ms
        leaf = at.parts.setdefault(line.place, _Part(line.text or line.place, line.place))
        leaf.ms += time.ms
    for name, ms in (("elsewhere", one.elsewhere_ms), ("between operators", one.outside_ms)):
        if ms > 0:
            root.parts[name] = _Part(name, ms=ms)
    return root


def _flame(found: Profile, one: Profiled, widest: float) -> str:
    cells = list(_cells(_tree(found, one), 0.0, 0, widest))
    deepest = max(depth for depth, _ in cells) + 1
    boxes = "".join(cell for _, cell in cells)
    return (
        f"<h2>{_text(one.name)} <small>({_text(one.session)}) {one.latency_ms:.3g} ms</small></h2>"
        f'<div class="flame" style="height: {deepest * ROW}px">{boxes}</div>'
    )


def _cells(part: _Part, left: float, depth: int, widest: float) -> Iterator[tuple[int, str]]:
    if part.ms < LEAST * widest:
        return
    hue = zlib.crc32(part.name.encode(errors="replace")) % 360
    title = f"{part.title or part.name}: {part.ms:.3f} ms"
    place = (
        f"left: {100 * left / widest:.3f}%; width: {100 * part.ms / widest:.3f}%; top: {depth * ROW}px; --hue: {hue}"
    )
    yield depth, f'<div style="{place}" title="{_text(title)}">{_text(part.name)}</div>'
    for inner in sorted(part.parts.values(), key=lambda one: -one.ms):
        yield from _cells(inner, left, depth + 1, widest)
        left += inner.ms


def _backward(found: Profile, time: LineTime) -> str:
    return f"<br>{time.backward_ms:.3f} ms backward" if found.train else ""


def _table(found: Profile, timed: list[Profiled]) -> str:
    times = [{time.line: time for time in one.times} for one in timed]
    most = {
        index: max((own[index].ms for own in times if index in own), default=0.0) for index in range(len(found.lines))
    }
    heads = "".join(f"<th>{_text(one.name)}</th>" for one in timed)
    rows = []
    for index in sorted(most, key=lambda one: -most[one]):
        if most[index] > 0:
            line = found.lines[index]
            cells = "".join(
                f"<td>{own[index].ms:.3f} ms {own[index].share:.1%}{_backward(found, own[index])}</td>"
                if index in own
                else "<td>-</td>"
                for own in times
            )
            flop = f"{line.flop / 1e9:.3g}" if line.flop else "-"
            name, source = line.module or "the model", f"{line.place} {line.text}"
            rows.append(
                f"<tr><td>{_text(name)}<br><code>{_text(source)}</code></td>"
                f"{cells}<td>{flop}</td><td>{line.bytes / 1e6:.3g}</td></tr>"
            )
    head = f"<tr><th>line</th>{heads}<th>GFLOP</th><th>MB</th></tr>"
    return f'<h2>Lines</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div>'
