"""torch.onnx: look up which operators have no translation, neither in its registry nor among exporter's own."""

from __future__ import annotations

import logging
import operator
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from exporter.core import causes, source_lines
from exporter.core.errors import ExportError
from exporter.model import capture, type_promotion
from exporter.model.state import snapshot
from exporter.targets import _onnx_tracing, _onnx_translations
from exporter.targets.onnx import no_state
from exporter.workers.explain import Finding
from exporter.workers.explain.subject import Subject


def examine(subject: Subject) -> list[Finding]:
    """Report state, and each missing operator once, with its first line and whether torch's older exporter has it."""
    return [*_state(subject), *_operators(subject)]


def _state(subject: Subject) -> list[Finding]:
    state = subject.loaded.state
    if state is None or subject.job.state == "inputs":
        return []
    error = no_state(snapshot.name(path) for path in state.paths)
    return [Finding("bad", str(error), snapshot.place(subject.model, state.paths[0]), error.remedy)]


def _operators(subject: Subject) -> list[Finding]:
    findings = _by_dynamo(subject)
    if findings[0].level == "bad" and _is_translated_by_the_older(subject):
        fallback = "torch's older exporter translates a trace of the model; the golden checks it at other sizes"
        return [Finding("ok", fallback), *(replace(one, level="note", remedy="") for one in findings)]
    return findings


def _is_translated_by_the_older(subject: Subject) -> bool:
    program = capture.Program(
        subject.contract,
        subject.job.options.device,
        lambda: subject.module,
        lambda: subject.example,
        exported_file=None,
    )
    try:
        _onnx_tracing.export(program, subject.job.options.opset, subject.captured.program is not None)
    except ExportError:
        return False
    return True


def _by_dynamo(subject: Subject) -> list[Finding]:
    from torch.onnx._internal.exporter import _core, _dispatching, _registration

    program = subject.captured.program
    if program is None:
        return [Finding("bad", "there is no exported graph to translate: see export")]
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    type_promotion.make_explicit(program)
    registry = _registration.ONNXRegistry.from_torchlib()
    for own, translation in _onnx_translations.table().items():
        registry.register_op(own, translation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
        prepared = _core._prepare_exported_program_for_export(program, registry=registry)
    findings: dict[str, Finding] = {}
    calls = list(_calls(prepared.graph_module))
    for node in calls:
        function, why = _dispatching.dispatch(node, registry)
        if function is None:
            findings.setdefault(str(node.target), _missing(node, why))
    if findings:
        return list(findings.values())
    kinds = len({str(node.target) for node in calls})
    said = f"all {kinds} operators have" if kinds > 1 else "the only operator has" if kinds else "no operator needs"
    opset = registry.opset_version
    return [Finding("ok", f"{said} a translation (torch's registry of opset {opset})")]


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    return [
        node
        for inner in module.modules()  # branches are submodules
        if isinstance(inner, fx.GraphModule)
        for node in inner.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]


def _missing(node: fx.Node, why: str) -> Finding:
    target: Any = node.target
    name = str(target) if isinstance(target, torch._ops.OpOverload) else type(target).__name__
    cause = causes.find(f"No ONNX function found for {target!r}. {why}", "onnx")
    place = source_lines.place(str(node.meta.get("stack_trace") or ""))
    return Finding("bad", f"{name}: {cause.sentence if cause else why}", place, cause.remedy if cause else "")
