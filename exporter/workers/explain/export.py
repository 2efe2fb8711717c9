"""torch.export: which sizes stay dynamic, which it fixed or narrowed, and which conditions the code checks on them."""

from __future__ import annotations

import collections
import re
from dataclasses import replace
from typing import Any

from exporter.core import source_lines
from exporter.core.contract import Narrowing
from exporter.core.errors import ExportError
from exporter.core.expressions import Expression
from exporter.core.size_range import Range
from exporter.model.state import snapshot
from exporter.workers.explain import Finding, failure
from exporter.workers.explain.subject import Subject

_SYMBOL = re.compile(r"\b[su]\d+\b")
ACCEPTS = {
    "graph": "artifacts made from its graph (compile, export, onnx, and script if it cannot compile the code) accept",
    "guards": "the target export, which checks the conditions of its graph, accepts",
    "code": "the target compile, whose code relies on the conditions of the graph, accepts",
}
SHOWN = 8  # number of lines with conditions to report


def examine(subject: Subject) -> list[Finding]:
    """Report the model's state, whether torch.export accepts the model, and how it restricts the sizes."""
    return [*_state(subject), *_taken(subject)]


def _state(subject: Subject) -> list[Finding]:
    """Report each state tensor with the line that changes it."""
    state = subject.loaded.state
    if state is None:
        return []
    text = "the model keeps state in"
    lines = [snapshot.place(subject.model, path) for path in state.paths]
    return [Finding("note", f"{text} {snapshot.name(p)}", w) for p, w in zip(state.paths, lines, strict=True)]


def _taken(subject: Subject) -> list[Finding]:
    captured = subject.captured
    if captured.program is None:
        return [failure(captured.error or ExportError("no program"), "export")]
    symbols = subject.contract.symbols
    promised = ", ".join(f"{name} {bounds}" for name, bounds in symbols.items()) or "all sizes fixed"
    findings = [Finding("ok", f"torch.export accepts the model; promised: {promised}")]
    if captured.narrowings:
        findings = [Finding("note", f"torch.export accepts the model, but not everything promised: {promised}")]
    findings += [
        Finding("note", source_lines.without(text), source_lines.place(text)) for text in subject.loaded.narrowed
    ]
    findings += [_narrowed(one, symbols) for one in captured.narrowings]
    findings += [Finding("bad", str(replace(one, place="")), one.place) for one in captured.limits]
    return [*findings, *_conditions(captured.guards, _names(captured.program, subject))]


def _narrowed(one: Narrowing, symbols: dict[str, Range]) -> Finding:
    """Report which artifacts accept less than is promised, and the line that causes it."""
    remaining = replace(one, place="").told(symbols[one.symbol])
    return Finding("bad", f"{ACCEPTS[one.of]} only {remaining}", one.place)


def _names(program: Any, subject: Subject) -> dict[str, str]:
    """Map torch.export's symbols to their names in the contract."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(subject.function.inputs) :]
    pairs = [
        (str(size), dim)
        for node, spec in zip(nodes, subject.function.inputs, strict=True)
        for size, dim in zip(node.meta["val"].shape, spec.shape, strict=True)
    ]
    named = {size: dim for size, dim in pairs if isinstance(dim, str) and size.isidentifier()}
    return {size: f"({dim})" if Expression.parse(dim).is_sum else dim for size, dim in named.items()}


def _conditions(guards: tuple[tuple[str, str], ...], names: dict[str, str]) -> list[Finding]:
    """Report the shortest condition of each line, without conditions on unnamed sizes."""
    by_line: dict[str, list[str]] = collections.defaultdict(list)
    for condition, line in guards:
        if all(symbol in names for symbol in _SYMBOL.findall(condition)):
            by_line[line].append(_SYMBOL.sub(lambda match: names[match[0]], condition))
    findings = []
    for line, conditions in by_line.items():
        first, *others = sorted(dict.fromkeys(conditions), key=len)
        more = f" and {len(others)} similar conditions" if others else ""
        findings.append(Finding("note", f"the code checks whether {first}{more}", line))
    left = [Finding("note", f"and {len(findings) - SHOWN} more lines")] if len(findings) > SHOWN else []
    return findings[:SHOWN] + left
