"""The steps of an ONNX model: the nodes that onnxruntime ran, and where those of the exported program became them."""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import source_lines
from exporter.core.profile_records import Origin, Step, Steps
from exporter.model import origins, steps

if TYPE_CHECKING:
    from exporter.model.tensors import Run, Tensors

OPTIMIZED = "optimized.onnx"
COPIES = ("Transpose", "ReorderInput", "ReorderOutput", "MemcpyToHost", "MemcpyFromHost", "Cast", "Identity")
HOST = "onnxruntime times the launches of kernels on the host, not the kernels on the GPU"
_SUFFIX = "_kernel_time"
_FX_NODE = re.compile(r"^%?(\w+)")


def record(path: Path, make: Callable[[Path, Path], tuple[Any, Run]], device: str, inputs: Tensors, runs: int) -> Steps:
    """Return the typical call of `runs` calls.

    `make` gets the path of the model and a folder, and returns a session that writes its profile and optimized model
    there, with the function that calls it.
    """
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        session, run = make(path, Path(folder))
        for _ in range(runs + 1):
            run(inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        where = _origins(path, Path(folder, OPTIMIZED))
    calls = [one for one in events if one.get("name") == "model_run"][-runs:]
    kernels = [one for one in events if one.get("cat") == "Node" and one["name"].endswith(_SUFFIX)]
    found = []
    for call in calls:
        end = call["ts"] + call["dur"]
        inside = [one for one in kernels if call["ts"] <= one["ts"] < end]
        inside.sort(key=lambda one: (one["ts"], -one["dur"]))
        taken = zip(inside, _own(inside), strict=True)
        found.append(Steps(tuple(_step(one, own, call["ts"], where, device) for one, own in taken), call["dur"]))
    notes = (HOST,) if device != "cpu" else ()
    return replace(steps.typical(found), notes=notes)


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
    event: Mapping[str, Any], took: float, begun: float, where: Mapping[str, tuple[Origin, ...]], device: str
) -> Step:
    operator = event["args"].get("op_name", "")
    fallback = device != "cpu" and event["args"].get("provider", "").startswith("CPU")
    return Step(
        operator,
        float(event["ts"] - begun),
        took,
        copy_us=took if operator in COPIES else 0.0,
        origins=where.get(event["name"].removesuffix(_SUFFIX), ()),
        fallback=fallback,
    )


def _origins(path: Path, optimized: Path) -> dict[str, tuple[Origin, ...]]:
    """Return the origins of the nodes that onnxruntime runs, by their names.

    Its optimizations fuse nodes, but keep the names of the values between them: a fused node computes all that lies
    between its inputs and its outputs in the model.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    producer = {value: node for node in _all(model.graph) for value in node.output if value}
    ran = onnx.load(str(optimized), load_external_data=False) if optimized.exists() else model
    taken: set[int] = set()
    found = {}
    for node in _all(ran.graph):
        behind = _between(producer, node.output, set(node.input))
        own = [one for one in behind if id(one) not in taken] or behind
        taken |= {id(one) for one in own}
        found[node.name] = tuple(dict.fromkeys(filter(None, map(_origin, own))))
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
    place = source_lines.place(said.get("stack_trace", ""))
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
