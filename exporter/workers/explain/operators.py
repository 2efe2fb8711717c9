"""Operators that are not torch's own: their libraries must be loaded before an artifact."""

from __future__ import annotations

from exporter.model import custom_ops
from exporter.workers.explain import Finding
from exporter.workers.explain.subject import Subject
from exporter.workers.explain.trace import trace


def examine(subject: Subject) -> list[Finding]:
    """Find the operators in the exported graph, or in a trace if there is none."""
    program = subject.captured.program
    if program is not None:
        found = custom_ops.of_exported(program)
    else:
        found = custom_ops.of_script(trace(subject.module, subject.example).module)
    if not found:
        return [Finding("ok", "all operators are torch's own")]
    return [_library(namespace, subject.job.options.ops_libs) for namespace in found]


def _library(namespace: str, given: tuple[str, ...]) -> Finding:
    """Return which library C++ loads: the known one, or else those that the user gave, whose contents are unknown."""
    file = custom_ops.library(namespace)
    if file is not None:
        return Finding("note", f"operators of {namespace}: C++ loads them from {file} (--ops-lib)")
    if given:
        text = f"operators of {namespace}: C++ must load the library that registers them, one of --ops-lib:"
        return Finding("note", f"{text} {', '.join(given)}")
    text = f"operators of {namespace}: no known library registers them in C++"
    return Finding("bad", text, "", "build one with TORCH_LIBRARY and pass it: exporter-run --ops-lib FILE")
