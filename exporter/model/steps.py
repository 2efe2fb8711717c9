"""The steps of calls, recorded by torch.profiler: the outermost operators and kernels, in their order."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exporter.core.profile_records import Origin, Step, Steps

if TYPE_CHECKING:
    from torch import fx

    from exporter.model.tensors import Run, Tensors

CALL = "exporter: call"
NODE = "exporter node::"
COPIES = ("aten::copy_", "Memcpy", "Memset")
KERNELS = ("graph_", "aoti_torch_", "cpp_", "triton_", "fused_", "TensorExpr", "prim::TensorExpr")
Call = tuple[Any, Sequence[Any]]  # the profiler's event of a call, and those of its steps
Explain = Callable[[Sequence[Any]], Sequence[tuple[Origin, ...]]]


def record(run: Run, inputs: Tensors, device: str, runs: int, explain: Explain | None = None) -> Steps:
    """Return the typical call of `runs` calls.

    `explain` maps the profiler's events of one call to their origins.
    """
    calls = [(call, list(outermost(call))) for call in calls_of(run, inputs, device, runs)]
    return _explained(calls, explain, lambda call, event: step_of(call, event, device))


def _explained(calls: Sequence[Call], explain: Explain | None, make: Callable[[Any, Any], Step]) -> Steps:
    """Return the typical call of some calls with the events of each, and with the origins of its steps."""
    found = typical(
        [Steps(tuple(make(call, event) for event in events), call.time_range.elapsed_us()) for call, events in calls]
    )
    if explain is None:
        return found
    events = next(events for _, events in calls if len(events) == len(found.steps))
    origins = zip(found.steps, explain(events), strict=True)
    return replace(found, steps=tuple(replace(step, origins=tuple(own)) for step, own in origins))


def record_kernels(run: Run, inputs: Tensors, device: str, runs: int, explain: Explain | None = None) -> Steps:
    """Return the typical call of `runs` calls of code that launches kernels on a GPU without operators of torch.

    Its steps are the kernels, in the order in which they run.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            with record_function(CALL):
                run(inputs)
                torch.cuda.synchronize(device)
    events = sorted(profiler.events(), key=lambda one: one.time_range.start)
    kernels = [one for one in events if one.device_type.name == "CUDA" and one.name != CALL]
    calls = []
    for call in (one for one in events if one.name == CALL and one.device_type.name == "CPU"):
        own = [one for one in kernels if call.time_range.start <= one.time_range.start <= call.time_range.end]
        calls.append((call, own))
    return _explained(calls, explain, _kernel)


def _kernel(call: Any, event: Any) -> Step:
    took = event.time_range.elapsed_us()
    copied = took if event.name.startswith(COPIES) else 0.0
    return Step(event.name, event.time_range.start - call.time_range.start, took, 1, copied, took)


def calls_of(run: Run, inputs: Tensors, device: str, runs: int, stacks: bool = False) -> list[Any]:
    """Return the profiler's event of each call, with the events inside it as its children."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else ())]
    with profile(activities=activities, with_stack=stacks) as profiler:
        for _ in range(runs):
            with record_function(CALL):
                run(inputs)
                if device != "cpu":
                    torch.cuda.synchronize(device)
    return [event for event in profiler.events() if event.name == CALL and event.device_type.name == "CPU"]


def outermost(event: Any) -> Iterator[Any]:
    """Yield the outermost events of operators and kernels inside an event, in the order of their beginning."""
    for child in sorted(event.cpu_children, key=lambda one: one.time_range.start):
        if "::" in child.name or child.name.startswith(KERNELS):
            yield child
        else:
            yield from outermost(child)


def step_of(call: Any, event: Any, device: str) -> Step:
    """Return the step of an event in a call."""
    inside = list(everything(event))
    copies = [one for one in inside if one.name.startswith(COPIES)]
    on_gpu = device != "cpu"
    return Step(
        event.name,
        event.time_range.start - call.time_range.start,
        event.time_range.elapsed_us(),
        len(inside),
        sum(one.device_time_total if on_gpu else one.time_range.elapsed_us() for one in copies),
        event.device_time_total if on_gpu else None,
    )


def on_gpu(step: Step, call: Any, event: Any) -> Step:
    """Return a step with the times of its event in a call."""
    found = step_of(call, event, "cuda")
    return replace(
        found, name=step.name, origins=step.origins, copy_us=found.time_us if step.copy_us else found.copy_us
    )


def everything(event: Any) -> Iterator[Any]:
    """Yield an event and all events inside it."""
    yield event
    for child in event.cpu_children:
        yield from everything(child)


def of_nodes(module: fx.GraphModule, inputs: Tensors, device: str, runs: int) -> Steps:
    """Return the typical call of a graph that runs node by node."""
    import torch
    from torch import fx

    from exporter.model import origins

    ran: list[fx.Node] = []

    class Walk(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n.op != "call_function":
                return super().run_node(n)
            ran.append(n)
            with torch.profiler.record_function(f"{NODE}{n.target}"):
                return super().run_node(n)

    def run(given: Tensors) -> Tensors:
        ran.clear()
        with torch.no_grad():
            return tuple(Walk(module, garbage_collect_values=True).run(*given))

    found = record(run, inputs, device, runs, lambda events: [(origins.of(node),) for node in ran])
    return replace(found, steps=tuple(replace(one, name=one.name.removeprefix(NODE)) for one in found.steps))


def typical(calls: Sequence[Steps]) -> Steps:
    """Return the typical call, of those with the usual number of steps.

    The time of a step is the mean of the middle half of its times, since now and then the machine interrupts one. The
    steps are scaled together, so that they take as much of the call as in the middle half of the calls.
    """
    ((usual, _),) = Counter(len(call.steps) for call in calls).most_common(1)
    calls = [call for call in calls if len(call.steps) == usual]
    columns = list(zip(*(call.steps for call in calls), strict=True))
    scale = _middle(sum(step.time_us for step in call.steps) for call in calls)
    scale /= sum(_middle(step.time_us for step in column) for column in columns) or 1.0
    duration = _middle(call.duration_us for call in calls)
    return Steps(tuple(_typical(column, scale) for column in columns), duration, calls[0].notes)


def _typical(column: Sequence[Step], scale: float) -> Step:
    on_device = [one.device_us for one in column if one.device_us is not None]
    return replace(
        column[0],
        start_us=_middle(one.start_us for one in column),
        duration_us=scale * _middle(one.duration_us for one in column),
        copy_us=scale * _middle(one.copy_us for one in column),
        device_us=scale * _middle(on_device) if on_device else None,
    )


def _middle(values: Iterable[float]) -> float:
    """Return the mean of the middle half."""
    ordered = sorted(values)
    out = len(ordered) // 4
    return statistics.fmean(ordered[out : len(ordered) - out])
