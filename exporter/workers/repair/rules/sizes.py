"""A size that depends on values: state what holds for it with torch._check, as torch.export suggests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from exporter.workers.repair.rules._rule import Failure, Proposal, proposal, torch_of

_SUGGESTED = re.compile(r"^\s*\d+\. (torch\._check\(.+\))\s*$", re.MULTILINE)
NOTE = "exported programs refuse inputs for which this does not hold"


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose each check that torch.export suggests, before the failing statement, unless that is itself a test."""
    if not failure.nodes:
        return
    source, node = failure.source, failure.nodes[0]
    statement = source.statement(node)
    tested = any(isinstance(one, (ast.If, ast.While, ast.Assert, ast.IfExp)) for one in (node, *source.ancestors(node)))
    if statement is None or tested or source.indent(statement) is None:
        return
    start, indent = source.span(statement)[0], source.indent(statement)
    for check in dict.fromkeys(_SUGGESTED.findall(failure.obstacle.message)):
        if not check.startswith("torch._check(not ") and re.search(r"\b[su]\d+\b|\bzuf\d+\b", check):
            continue  # a symbol without a name in the source
        text = check.replace("torch.", f"{torch_of(source)}.", 1)
        yield proposal(source, statement, [(start, start, f"{text}\n{indent}")], f"state {text}", NOTE)
