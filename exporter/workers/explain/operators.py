"""Operators outside torch's own: what whoever loads an artifact has to load first."""

from __future__ import annotations

from exporter.model import custom_ops
from exporter.workers.explain import Finding
from exporter.workers.explain.subject import Subject
from exporter.workers.explain.trace import trace


def examine(subject: Subject) -> list[Finding]:
    """From the exported graph; from a trace where there is none."""
    program = subject.captured.program
    if program is not None:
        found = custom_ops.of_exported(program)
    else:
        found = custom_ops.of_script(trace(subject.module, subject.example).module)
    if not found:
        return [Finding("ok", "all operators are torch's own")]
    return [_library(namespace, subject.job.options.ops_libs) for namespace in found]


def _library(namespace: str, given: tuple[str, ...]) -> Finding:
    """Which library C++ loads: the one that is known, else what the user gave, of which nobody knows what it holds."""
    file = custom_ops.library(namespace)
    if file is not None:
        return Finding("note", f"operators of {namespace}: C++ loads them from {file} (--ops-lib)")
    if given:
        text = f"operators of {namespace}: C++ has to load the library that registers them, here one of --ops-lib:"
        return Finding("note", f"{text} {', '.join(given)}")
    text = f"operators of {namespace}: no library is known that registers them in C++"
    return Finding("bad", text, "", "build one with TORCH_LIBRARY and give it: exporter-run --ops-lib FILE")
