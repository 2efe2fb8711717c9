"""torch.compile: where it breaks the graph, and at which sizes it recompiles."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import utils

from exporter.core import probing, source_lines
from exporter.model import differentiation
from exporter.workers.explain import Finding, counted
from exporter.workers.explain.subject import Subject

LIMIT = 64  # limit of compilations of one function; torch's default is 8
SHOWN = 8  # number of recompilations to report


def examine(subject: Subject) -> list[Finding]:
    """Report graph breaks at the example and recompilations over the golden's sizes."""
    return [*_breaks(subject), *_recompilations(subject)]


def _breaks(subject: Subject) -> list[Finding]:
    torch._dynamo.reset()
    args, kwargs = subject.call(subject.example)
    found = _run(subject, lambda: torch._dynamo.explain(subject.model)(*args, **kwargs))
    if not found.graph_break_count:
        return [Finding("ok", f"one graph of {counted(found.op_count, 'operation')}, without breaks")]
    breaks = {(_first_line(reason.reason), _place(reason.user_stack)): None for reason in found.break_reasons}
    total = f"the model is split into {found.graph_count} graphs with {counted(found.op_count, 'operation')}"
    return [Finding("note", total), *(Finding("bad", f"graph break: {text}", place) for text, place in breaks)]


def _recompilations(subject: Subject) -> list[Finding]:
    torch._dynamo.reset()
    compiled = torch.compile(subject.model, backend="eager")
    found: dict[str, Finding] = {}
    compilations, sizes = 0, subject.sizes()
    with torch._dynamo.config.patch(recompile_limit=LIMIT, accumulated_recompile_limit=LIMIT):
        for at in sizes:
            utils.clear_compilation_metrics()
            args, kwargs = subject.call(subject.inputs(at))
            _run(subject, functools.partial(compiled, *args, **kwargs))
            made = utils.get_compilation_metrics()
            compilations += len(made)
            for one in filter(lambda one: one.recompile_reason, made):
                text = f"recompiled at {probing.describe(at)}: {_first_line(str(one.recompile_reason))}"
                found.setdefault(
                    text, Finding("note", text, source_lines.place(f"{one.co_filename}:{one.co_firstlineno}"))
                )
    torch._dynamo.reset()
    again = list(found.values())
    total = Finding("ok", f"{counted(compilations, 'compilation')} over {counted(len(sizes), 'size')}")
    left = [Finding("note", f"and {counted(len(again) - SHOWN, 'more recompilation')}")] if len(again) > SHOWN else []
    return [total, *again[:SHOWN], *left]


def _run(subject: Subject, call: Callable[[], Any]) -> Any:
    """Return the result of a call of the model, with gradients recorded if the model leaves that to its caller."""
    if needed := differentiation.needed(subject.model):
        return differentiation.recorded(call, subject.model, needed)
    with torch.no_grad():
        return call()


def _first_line(text: str) -> str:
    """Return the first line without the frame number before it and the code that torch quotes after it."""
    line = text.strip().partition("\n")[0].partition("  # ")[0]
    return re.sub(r"^\d+/\d+: ", "", line)


def _place(stack: Any) -> str:
    return source_lines.place("".join(traceback.format_list(stack)))
