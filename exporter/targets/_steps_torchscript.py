"""Where the steps of a TorchScript artifact come from, by the source locations in the archive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from exporter.core import source_lines
from exporter.core.profile_records import Origin, Steps, aligned
from exporter.model import steps

if TYPE_CHECKING:
    from exporter.model.tensors import Tensors
    from exporter.model.torchscript.codegen import Script

# A node's location: first where its code comes from, then its line in the archive's code.
_SERIALIZED = re.compile(r'Serialized\s+File "(code/[^"]+)", line (\d+)')
_EVENT = re.compile(r"(code/.+)\((\d+)\): ")  # a frame of the profiler's stack
_NODE = re.compile(r"^\s*(\w+)(?:: [^=]+)? = .*\n\s*~* *<--- HERE", re.MULTILINE)  # code made from an exported program
_GENERATED = 'File "<string>"'
Key = tuple[str, str, str]


def record(script: Script, device: str, inputs: Tensors, runs: int) -> Steps:
    """Return the typical call, with the origins of its steps."""
    places: dict[Key, list[Origin]] = {}
    for node in _nodes(script.graph):
        said = node.sourceRange()
        if line := _SERIALIZED.search(said):
            places.setdefault((line[1], line[2], node.kind()), []).append(_origin(said))
    (learned,) = steps.calls_of(script, inputs, device, 1, stacks=True)
    events = list(steps.outermost(learned))
    origins = _origins(events, places)

    def explain(found: Sequence[Any]) -> Sequence[tuple[Origin, ...]]:
        at = aligned([event.name for event in events], [event.name for event in found])
        return [() if index is None else origins[index] for index in at]

    return steps.record(script, inputs, device, runs, explain)


def _origins(events: Sequence[Any], places: dict[Key, list[Origin]]) -> list[tuple[Origin, ...]]:
    """Return the origin of each event. Equal operators on one line take turns."""
    found: list[tuple[Origin, ...]] = []
    used: dict[Key, int] = {}
    for event in events:
        line = next(filter(None, map(_EVENT.match, event.stack)), None)
        known = places.get(key := (line[1], line[2], event.name), []) if line else []
        if not known:
            found.append(())
            continue
        used[key] = used.get(key, -1) + 1
        found.append((known[used[key] % len(known)],))
    return found


def _origin(said: str) -> Origin:
    source = said[: said.index("Serialized")]
    if source.lstrip().startswith(_GENERATED):
        node = _NODE.search(source)
        return Origin(node=node[1] if node else "")
    return Origin(place=source_lines.place(source))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
