"""Chrome traces of a profile, as Perfetto and TensorBoard's profiler plugin read them."""

from __future__ import annotations

import json

from exporter.core import source_lines
from exporter.core.profile_records import Profiled, Steps

HOST, GPU = 1, 2  # thread ids
PROCESS = 1


def chrome(variant: Profiled, steps: Steps) -> str:
    """Return one call of a variant as a trace: each step with its module and its source line."""
    events: list[dict[str, object]] = [
        _meta("process_name", f"{variant.name} ({variant.session})", 0),
        _meta("thread_name", "host", HOST),
        _event("ProfilerStep#0", "user_annotation", 0.0, steps.duration_us, HOST),
    ]
    for number, step in enumerate(steps.steps):
        places = [f"{one.module} {one.place}".strip() for one in step.origins]
        args = {"External id": number, "lines": "; ".join(places), "copies_us": step.copy_us, "fallback": step.fallback}
        args |= {"backward": True} if step.backward else {}
        name = source_lines.printable(step.name)
        events.append(
            _event(name, "cpu_op", step.start_us, min(step.duration_us, _rest(steps, step.start_us)), HOST, args)
        )
        if step.device_us:
            kernel = args | {"device": 0, "stream": 7, "correlation": number}
            events.append(_event(name, "kernel", step.start_us, step.device_us, GPU, kernel))
    if any(step.device_us for step in steps.steps):
        events.append(_meta("thread_name", "GPU", GPU))
    properties = [{"id": 0, "name": "GPU"}] if any(step.device_us for step in steps.steps) else []
    return json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events}, allow_nan=False)


def _rest(steps: Steps, start_us: float) -> float:
    """Return how long the call lasts from here on, so that no step reaches beyond it."""
    return max(steps.duration_us - start_us, 0.0)


def _event(
    name: str, kind: str, start: float, took: float, thread: int, args: dict[str, object] | None = None
) -> dict[str, object]:
    found = {"ph": "X", "cat": kind, "name": name, "pid": PROCESS, "tid": thread, "ts": round(start, 3)}
    return found | {"dur": round(took, 3), "args": args or {}}


def _meta(name: str, value: str, thread: int) -> dict[str, object]:
    value = source_lines.printable(value)
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "ts": 0, "args": {"name": value}}
