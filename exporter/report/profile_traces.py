"""Chrome traces of a profile, as Perfetto and TensorBoard's profiler plugin read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from exporter.core import source_lines
from exporter.core.profile_records import Line, Profile, Profiled, Step, Steps

HOST, GPU = 1, 2  # thread ids
PROCESS = 1
TICKS = 256  # in a microsecond: sums of such fractions are exact, so that no event reaches into the next one
Span = tuple[float, float]  # beginning and end, in microseconds
Event = dict[str, Any]


def chrome(found: Profile, variant: Profiled, steps: Steps) -> str:
    """Return one call of a variant, with the profiler, as a trace: modules, and in them the steps with their lines.

    The profiler does not tell when a step's kernels begin: on the GPU's track, steps follow one another, each as soon
    as its operator begins.
    """
    spans, call_us = timeline(steps)
    works = _Works(found.lines)
    names = [_printable(step.name) for step in steps.steps]
    arguments = [{"External id": number, **works.of(step)} for number, step in enumerate(steps.steps, 1)]
    on_gpu = [index for index, step in enumerate(steps.steps) if step.device_us]
    kernels, end = [], 0.0
    for index in on_gpu:
        begin = max(end, spans[index][0])
        end = begin + (steps.steps[index].device_us or 0.0)
        launched = {"External id": index + 1, "correlation": index + 1}
        kernel = arguments[index] | launched | {"device": 0, "stream": 7}
        kernels.append(_event(names[index], "kernel", (begin, end), GPU, kernel))
        kernels.append(_event("launch", "runtime", (spans[index][0], spans[index][0]), HOST, launched))
    events = [
        _meta("process_name", f"{found.model}: {variant.name} ({variant.session})", 0),
        _meta("thread_name", "host", HOST),
        *([_meta("thread_name", "GPU", GPU)] if on_gpu else []),
        _event("ProfilerStep#0", "user_annotation", (0.0, max(call_us, end)), HOST),
        *_modules(steps.steps, spans),
        *(_event(name, "cpu_op", span, HOST, given) for name, span, given in zip(names, spans, arguments, strict=True)),
        *kernels,
    ]
    made = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "deviceProperties": [{"id": 0, "name": "GPU"}] if on_gpu else [],
        "otherData": {"latency without the profiler": f"{variant.latency_ms:.4f} ms"},
        "traceEvents": events,
    }
    return json.dumps(made, allow_nan=False)


def timeline(steps: Steps) -> tuple[list[Span], float]:
    """Return the beginning and the end of each step, one after another, and the duration of the call.

    The recorder of eager's steps takes time between them that is not in the call's duration. If they reach beyond that,
    the gaps between them are shortened in proportion.
    """
    gaps, end = [], 0.0
    for step in steps.steps:
        gaps.append(max(step.start_us - end, 0.0))
        end = max(end, step.start_us) + step.duration_us
    busy = sum(step.duration_us for step in steps.steps)
    scale = 1.0
    if end > steps.duration_us:
        scale = max(steps.duration_us - busy, 0.0) / sum(gaps) if sum(gaps) else 0.0
    spans, at = [], 0.0
    for step, gap in zip(steps.steps, gaps, strict=True):
        begin = at + gap * scale
        at = begin + step.duration_us
        spans.append((begin, at))
    return spans, max(steps.duration_us, at)


class _Works:
    """The work of a line in one module, by the module and the place that a step names."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = {(line.module, line.place): line for line in lines}

    def _find(self, module: str, place: str) -> Line | None:
        pattern = ".".join("*" if part.isdecimal() else part for part in module.split("."))
        return self._lines.get((module, place)) or self._lines.get((pattern, place))

    def of(self, step: Step) -> Event:
        """Return what a trace tells of a step. The work is that of its lines, to which other steps may belong."""
        places = dict.fromkeys((one.module or "", one.place) for one in step.origins)
        lines = [line for key in places if (line := self._find(*key))]
        known = [line.flop / line.modules for line in lines if line.flop is not None]
        made: Event = {
            "module": "; ".join(dict.fromkeys(module for module, _ in places)),
            "line": "; ".join(dict.fromkeys(place for _, place in places)),
            "source": "; ".join(dict.fromkeys(line.text for line in lines if line.text)),
            "bytes of the lines": sum(line.bytes / line.modules for line in lines),
            "FLOP of the lines": sum(known) if len(known) == len(lines) else None,
            "copies (us)": round(step.copy_us, 3),
            "fallback": step.fallback,
            # TensorBoard groups operators by this.
            "Call stack": ";".join(_frame(place, module) for module, place in places),
        }
        return made | ({"backward": True} if step.backward else {})


def _frame(place: str, module: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{file}({line}): {module or 'the model'}"


def _modules(steps: Sequence[Step], spans: Sequence[Span]) -> Iterator[Event]:
    """Yield each module, from the beginning of its first step to the end of the last one before another module's.

    Kernels that compute parts of several modules belong to the module that contains all of them.
    """
    opened: list[tuple[str, float, int]] = []  # the running modules with their beginning and their number
    count, end = 0, 0.0

    def closed(depth: int) -> Iterator[Event]:
        while len(opened) > depth:
            name, begin, number = opened.pop()
            above = opened[-1][2] if opened else 0
            ids = {"Python id": number, "Python parent id": above, "Python module id": 0}
            yield _event(f"nn.Module: {_printable(name)}", "python_function", (begin, end), HOST, ids)

    for step, span in zip(steps, spans, strict=True):
        path = _shared([(one.module or "").split(".") for one in step.origins if one.module or one.place])
        names = [".".join(path[: depth + 1]) for depth in range(len(path)) if path[depth]]
        shared = len(_shared([names, [name for name, _, _ in opened]]))
        yield from closed(shared)
        for name in names[shared:]:
            count += 1
            opened.append((name, span[0], count))
        end = span[1]
    yield from closed(0)


def _shared(paths: Sequence[list[str]]) -> list[str]:
    """Return the longest beginning that all paths have in common."""
    found = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        found.append(names[0])
    return found


def _printable(text: str) -> str:
    return source_lines.printable(text)


def _event(name: str, kind: str, span: Span, thread: int, args: Event | None = None) -> Event:
    begin, end = (round(one * TICKS) / TICKS for one in span)
    shown = {key: _printable(value) if isinstance(value, str) else value for key, value in (args or {}).items()}
    made = {"ph": "X", "cat": kind, "name": name, "pid": PROCESS, "tid": thread}
    return made | {"ts": begin, "dur": end - begin, "args": shown}


def _meta(name: str, value: str, thread: int) -> Event:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "ts": 0, "args": {"name": _printable(value)}}
