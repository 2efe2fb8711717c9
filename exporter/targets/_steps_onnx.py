"""The steps of an ONNX model: the nodes that onnxruntime ran, and where those of the exported program became them."""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from exporter.core import source_lines
from exporter.core.profile_records import Origin, Step, Steps
from exporter.model import origins, steps

if TYPE_CHECKING:
    from exporter.model.tensors import Run, Tensors

OPTIMIZED = "optimized.onnx"
COPIES = ("Transpose", "ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost", "Cast", "Identity")
_SUFFIX = "_kernel_time"
_FX_NODE = re.compile(r"^%?(\w+)")


def record(path: Path, make: Callable[[Path, Path], tuple[Any, Run]], device: str, inputs: Tensors, runs: int) -> Steps:
    """Return the typical call of `runs` calls.

    `make` gets the path of the model and a folder, and returns a session that writes its profile and optimized model
    there, with the function that calls it. onnxruntime times only the launches of kernels; on a GPU, a node gets the
    kernels that torch.profiler saw it launch.
    """
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        session, run = make(path, Path(folder))
        launches = _launches(run, inputs, device, runs + 1)
        begun = session.get_profiling_start_time_ns()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        where = _origins(path, Path(folder, OPTIMIZED))
    calls = [one for one in events if one.get("name") == "model_run"][-runs:]
    kernels = [one for one in events if one.get("cat") == "Node" and one["name"].endswith(_SUFFIX)]
    found = []
    for call in calls:
        end = call["ts"] + call["dur"]
        inside = [one for one in kernels if call["ts"] <= one["ts"] < end]
        inside.sort(key=lambda one: (one["ts"], -one["dur"]))
        kernels_us = _kernels(inside, launches, begun) if device != "cpu" else [None] * len(inside)
        taken = zip(inside, _own(inside), kernels_us, strict=True)
        found.append(
            Steps(tuple(_step(one, own, us, call["ts"], where, device) for one, own, us in taken), call["dur"])
        )
    return steps.typical(found)


class Launch(NamedTuple):
    """The launch of a kernel or a copy, in nanoseconds since 1970, and its time on the GPU in microseconds."""

    at_ns: int
    device_us: float


def _launches(run: Run, inputs: Tensors, device: str, runs: int) -> list[Launch]:
    """Call a session, and return what it launches on the GPU; nothing on a CPU."""
    if device == "cpu":
        for _ in range(runs):
            run(inputs)
        return []
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            run(inputs)
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        place = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(place))
        return launches_in(json.loads(place.read_text(encoding="utf-8")))


def launches_in(trace: Mapping[str, Any]) -> list[Launch]:
    """Return the launches of a trace of torch.profiler, in their order."""
    begun, called, took = int(trace["baseTimeNanoseconds"]), dict[int, int](), dict[int, float]()
    for one in trace["traceEvents"]:
        number = one.get("args", {}).get("correlation")
        if one.get("cat") in ("cuda_runtime", "cuda_driver"):
            called[number] = begun + round(one["ts"] * 1000)
        elif one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            took[number] = took.get(number, 0.0) + one["dur"]
    return sorted(Launch(at, took[number]) for number, at in called.items() if number in took)


def _kernels(ordered: Sequence[Mapping[str, Any]], launches: Sequence[Launch], begun_ns: int) -> list[float | None]:
    """Return the time of the kernels of each node on the GPU; None for a node of the CPU that launches none.

    A launch belongs to the innermost node that runs at that time. Both clocks count from 1970.
    """
    spans = [(begun_ns + one["ts"] * 1000, begun_ns + (one["ts"] + one["dur"]) * 1000) for one in ordered]
    found: list[float | None] = [None if _on_cpu(one) else 0.0 for one in ordered]
    for launch in launches:
        inside = [index for index, (begin, end) in enumerate(spans) if begin <= launch.at_ns < end]
        if inside:  # the nodes are in the order in which they begin
            found[inside[-1]] = (found[inside[-1]] or 0.0) + launch.device_us
    return found


def _on_cpu(event: Mapping[str, Any]) -> bool:
    return bool(event["args"].get("provider", "").startswith("CPU"))


def _own(ordered: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the time of each node without that of the nodes inside it, as in a branch or a loop."""
    own: list[float] = []
    opened: list[int] = []
    for index, one in enumerate(ordered):
        while opened and one["ts"] >= ordered[opened[-1]]["ts"] + ordered[opened[-1]]["dur"]:
            opened.pop()
        if opened:
            own[opened[-1]] = max(own[opened[-1]] - one["dur"], 0.0)
        own.append(float(one["dur"]))
        opened.append(index)
    return own


def _step(
    event: Mapping[str, Any],
    took: float,
    kernels_us: float | None,
    begun: float,
    where: Mapping[str, tuple[Origin, ...]],
    device: str,
) -> Step:
    operator = event["args"].get("op_name", "")
    spent = took if kernels_us is None else kernels_us
    return Step(
        operator,
        float(event["ts"] - begun),
        took,
        copy_us=spent if operator in COPIES else 0.0,
        device_us=kernels_us,
        origins=where.get(event["name"].removesuffix(_SUFFIX), ()),
        fallback=device != "cpu" and _on_cpu(event),
    )


def _origins(path: Path, optimized: Path) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the nodes that onnxruntime runs, by their names.

    Its optimizations fuse nodes, but keep the names of the values between them: a fused node computes all that lies
    between its inputs and its outputs in the model. Where several nodes take the place of some, as a product between
    two changes of shape, the values between the new nodes are unknown, and each computes what they do together.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    producer = {value: node for node in _all(model.graph) for value in node.output if value}
    ran = onnx.load(str(optimized), load_external_data=False) if optimized.exists() else model
    maker = {value: node for node in _all(ran.graph) for value in node.output if value}
    users: dict[str, list[Any]] = {}
    for node in _all(ran.graph):
        for value in node.input:
            users.setdefault(value, []).append(node)
    taken: set[int] = set()
    found = {}
    for node in _all(ran.graph):
        outputs = _nearest(
            node.output, producer, lambda value: [o for user in users.get(value, ()) for o in user.output]
        )
        inputs = _nearest(node.input, producer, lambda value: maker[value].input if value in maker else ())
        behind = _between(producer, outputs, inputs)
        own = [one for one in behind if id(one) not in taken] or behind
        taken |= {id(one) for one in own}
        found[node.name] = tuple(dict.fromkeys(filter(None, map(_origin, own))))
    return found


def _nearest(values: Iterable[str], known: Container[str], next_to: Callable[[str], Iterable[str]]) -> set[str]:
    """Return these values, and instead of those that are not known, the nearest ones that are or that end the way."""
    found: set[str] = set()
    seen, left = set[str](), [value for value in values if value]
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        further = [] if value in known else [one for one in next_to(value) if one]
        left += further
        if not further:
            found.add(value)
    return found


def _between(producer: Mapping[str, Any], outputs: Iterable[str], inputs: set[str]) -> list[Any]:
    """Return the model's nodes on the ways from values back to others."""
    found: dict[int, Any] = {}
    left = [value for value in outputs if value]
    while left:
        node = producer.get(left.pop())
        if node is not None and id(node) not in found:
            found[id(node)] = node
            left += [value for value in node.input if value not in inputs]
    return list(found.values())


def _origin(node: Any) -> Origin | None:
    said = {one.key.rpartition(".")[2]: one.value for one in node.metadata_props}
    place = source_lines.place_of_node(said.get("stack_trace", ""))
    if not place:
        return None
    scopes = ast.literal_eval(said.get("name_scopes", "[]"))
    module = next((str(one) for one in reversed(scopes[:-1]) if one), "")
    name = _FX_NODE.match(said.get("fx_node", ""))
    return Origin(origins.within(module), place, name[1] if name else "")


def _all(graph: Any) -> Iterable[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _all(inner)
