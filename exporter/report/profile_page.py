"""The page of a profile: a flame view of each variant on one scale, and the table of lines. It loads nothing."""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from exporter.core import source_lines
from exporter.core.profile_records import Line, LineTime, Profile, Profiled

ROW = 20  # height of a row of the flame view, in pixels
SLOWED = 1.5  # with the profiler; less is not mentioned
LEAST = 0.001  # of the widest variant; narrower parts are left out
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
ELSEWHERE, BETWEEN = "elsewhere", "between operators"
STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --soft: #5b6675; --page: #ffffff; --edge: #d9dee5; --light: 82%;
  --bad: #b3261e; --raised: #f5f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ee; --soft: #9aa5b4; --page: #14181e; --edge: #313944; --light: 30%; --bad: #ff9d92;
    --raised: #1d2126; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); }
body { margin: 2rem auto; padding: 0 1rem; max-width: 75rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { color: var(--soft); margin: .2rem 0; max-width: 60rem; }
.advice { margin: 1rem 0; padding: .7rem 1rem; background: var(--raised); border-radius: 6px; }
.advice p { color: inherit; } .advice p:last-child { font-weight: 600; } .failed { color: var(--bad); }
.flame { position: relative; overflow: hidden; }
.flame div { position: absolute; height: 19px; font-size: 12px; line-height: 19px; text-indent: 3px;
  box-sizing: border-box; overflow: hidden; white-space: nowrap; text-overflow: ellipsis;
  border-right: 1px solid var(--page); background: hsl(var(--hue) 55% var(--light)); }
.flame .rest { background: var(--edge); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--edge); text-align: right; white-space: nowrap;
  vertical-align: top; font-variant-numeric: tabular-nums; }
tbody th { font-weight: 400; white-space: normal; min-width: 14rem; }
tr > :first-child { text-align: left; padding-left: 0; } code, small { color: var(--soft); }
@media (max-width: 640px) { tbody th { min-width: 9rem; } th, td { padding: .25rem .4rem; } }
@media (max-width: 640px) { body { margin: 1rem auto; } table { font-size: 13px; } }
"""
NOTE = (
    "GFLOP and MB are what a line asks for: floating-point operations, and the bytes that its operators would move if "
    "each ran alone. Below a variant's time stand its steps for the line, and the parts of this machine's bandwidth "
    "and FLOP rate that it reaches; a fused kernel moves fewer bytes than its operators, and may exceed 100%."
)


@dataclass
class _Part:
    """A module or a line, with its time and its parts. `first` is the first of its lines in the order of execution."""

    name: str
    title: str = ""
    ms: float = 0.0
    first: int = 0
    parts: dict[str, _Part] = field(default_factory=dict)


def render(found: Profile) -> str:
    """Return the page."""
    timed = [one for one in found.variants if one.latency_ms]
    widest = max((one.latency_ms for one in timed), default=1.0)
    what = f"{'a training step of ' if found.train else ''}{found.model}"
    rates = ", ".join(f"{rate / 1e9:,.3g} GFLOP/s in {name}" for name, rate in found.peaks.flop_per_s.items())
    about = (
        f"{found.device}, {found.threads} threads, {found.case}; {found.created}",
        f"This machine reached {found.peaks.bytes_per_s / 1e9:.3g} GB/s and {rates}.",
        *found.notes,
    )
    advice = "".join(f"<p>{_text(sentence)}</p>" for sentence in found.advice)
    advice = advice and f'<div class="advice">{advice}</div>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>Profile of {_text(what)}</title><style>{STYLE}</style></head><body>"
        f"<h1>Profile of {_text(what)}</h1>{''.join(f'<p>{_text(one)}</p>' for one in about)}"
        f"{advice}{''.join(map(_failure, found.variants))}"
        f"{''.join(_flame(found, one, widest) for one in timed)}{_table(found, timed) if timed else ''}</body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(source_lines.printable(text))


def _failure(one: Profiled) -> str:
    if not one.reason:
        return ""
    remedy = f"<p>Remedy: {_text(one.remedy)}</p>" if one.remedy else ""
    return f'<p class="failed">{_text(one.name)} was not profiled: {_text(one.reason)}</p>{remedy}'


def _tree(found: Profile, one: Profiled) -> _Part:
    root = _Part(one.name, one.name, one.latency_ms)
    for time in sorted(one.times, key=lambda time: time.line):
        line = found.lines[time.line]
        at, path = root, ""
        for name in filter(None, line.module.split(".")):
            path = f"{path}.{name}".removeprefix(".")
            at = at.parts.setdefault(name, _Part(name, path, first=time.line))
            at.ms += time.ms
        # A name that no module can have.
        leaf = at.parts.setdefault(f"line {line.place}", _Part(line.text or line.place, first=time.line))
        leaf.title = f"{line.module or 'the model'}, {line.place}, {_details(time)}"
        leaf.ms += time.ms
    for name, ms in ((ELSEWHERE, one.elsewhere_ms), (BETWEEN, one.outside_ms)):
        if ms > 0:
            root.parts[f"line {name}"] = _Part(name, name, ms, len(found.lines))
    return root


def _flame(found: Profile, one: Profiled, widest: float) -> str:
    cells = list(_cells(_tree(found, one), one.latency_ms, 0.0, 0, widest))
    deepest = max((depth for depth, _ in cells), default=0) + 1
    low, high = one.ci95_ms
    measured = f", 95% interval {low:.3g} to {high:.3g}" if high else ""
    slowed = f", {one.slowed:.2g} times that with the profiler" if one.slowed > SLOWED else ""
    notes = [f"copies take {one.copy_ms:.3g} ms"] if one.copy_ms > 0.01 * one.latency_ms else []
    notes += [f"falls back to {', '.join(one.fallbacks)}"] if one.fallbacks else []
    said = "".join(f"<p>{_text(note)}</p>" for note in (*notes, *one.notes))
    return (
        f"<h2>{_text(one.name)} <small>in {_text(one.session)}: {one.latency_ms:.3g} ms{measured}{slowed}</small></h2>"
        f'<div class="flame" role="img" aria-label="Flame view of {_text(one.name)}; the table has the same numbers" '
        f'style="height: {deepest * ROW}px">{"".join(cell for _, cell in cells)}</div>{said}'
    )


def _cells(part: _Part, whole: float, left: float, depth: int, widest: float) -> Iterator[tuple[int, str]]:
    """Yield the boxes of a part and of its parts with their depths, from left to right in the order of execution."""
    if part.ms < LEAST * widest:
        return
    hue = zlib.crc32(part.name.encode(errors="replace")) % 360
    title = f"{part.ms:.3f} ms, {part.ms / whole:.1%}: {part.title or part.name}"
    place = (
        f"left: {100 * left / widest:.3f}%; width: {100 * part.ms / widest:.3f}%; top: {depth * ROW}px; --hue: {hue}"
    )
    rest = ' class="rest"' if part.name in (ELSEWHERE, BETWEEN) else ""
    yield depth, f'<div{rest} style="{place}" title="{_text(title)}">{_text(part.name)}</div>'
    for inner in sorted(part.parts.values(), key=lambda one: one.first):
        yield from _cells(inner, whole, left, depth + 1, widest)
        left += inner.ms


def _details(time: LineTime) -> str:
    """Return what the flame view tells of a line when the pointer is over it."""
    said = [f"{time.calls} steps" if time.calls != 1 else "1 step"]
    said += [f"{time.bandwidth:.0%} of the bandwidth"] if time.bandwidth is not None else []
    said += [f"{time.compute:.0%} of the FLOP rate"] if time.compute is not None else []
    said += [f"copies {time.copy_ms:.3f} ms"] if time.copy_ms > 0.01 * time.ms else []
    return ", ".join(said)


def _table(found: Profile, timed: Sequence[Profiled]) -> str:
    times = [{time.line: time for time in one.times} for one in timed]
    most = {line: max(own[line].ms for own in times if line in own) for own in times for line in own}
    heads = "".join(f'<th scope="col">{_text(one.name)}</th>' for one in timed)
    rows = [
        _row(
            _name(found.lines[index]),
            (_cell(found, own.get(index)) for own in times),
            _number(found.lines[index].flop, 1e9),
            _number(found.lines[index].bytes, 1e6),
        )
        for index in sorted(most, key=lambda one: -most[one])
    ]
    for name, values in (
        (ELSEWHERE, [one.elsewhere_ms for one in timed]),
        (BETWEEN, [one.outside_ms for one in timed]),
        ("latency", [one.latency_ms for one in timed]),
    ):
        cells = (_milliseconds(ms, ms / one.latency_ms) for ms, one in zip(values, timed, strict=True))
        rows.append(_row(name, cells, "", ""))
    head = f'<thead><tr><th scope="col">line</th>{heads}<th scope="col">GFLOP</th><th scope="col">MB</th></tr></thead>'
    return (
        f'<h2>Lines</h2><p>{_text(NOTE)}</p><div class="scroll" tabindex="0" role="group" aria-label="Lines">'
        f"<table>{head}<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(name: str, cells: Iterable[str], flop: str, moved: str) -> str:
    inner = "".join(f"<td>{cell}</td>" for cell in (*cells, flop, moved))
    return f'<tr><th scope="row">{name}</th>{inner}</tr>'


def _name(line: Line) -> str:
    several = f" x{line.modules}" if line.modules > 1 else ""
    text = f"<br><code>{_text(line.text)}</code>" if line.text else ""
    operators = f"<br><small>{_text(', '.join(line.operators))}</small>" if line.operators else ""
    return (
        f"{_text(line.module or 'the model')}{several}<br><code>{_text(source_lines.near(line.place))}</code>"
        f"{text}{operators}"
    )


def _milliseconds(ms: float, share: float) -> str:
    return f"{ms:.3f} ms {share:.1%}"


def _cell(found: Profile, time: LineTime | None) -> str:
    if time is None:
        return "-"
    backward = f"<br>{time.backward_ms:.3f} ms backward" if found.train else ""
    parts = [f"{time.calls} x"]
    parts += [f"{time.bandwidth:.0%} GB/s"] if time.bandwidth is not None else []
    parts += [f"{time.compute:.0%} FLOP/s"] if time.compute is not None else []
    copies = f"<br>copies {time.copy_ms:.3f} ms" if time.copy_ms > 0.01 * time.ms else ""
    return f"{_milliseconds(time.ms, time.share)}{backward}<br><small>{', '.join(parts)}{copies}</small>"


def _number(value: float | None, unit: float) -> str:
    return f"{value / unit:.3g}" if value else "-"
