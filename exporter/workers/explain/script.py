"""torch.jit.script: the first construct that it cannot compile, and whether the exported graph can be used instead."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

import torch

from exporter.core import causes, source_lines
from exporter.core.errors import ExportError
from exporter.model.torchscript import bridge
from exporter.workers.explain import Finding, failure
from exporter.workers.explain.subject import Subject


def examine(subject: Subject) -> list[Finding]:
    """Try torch.jit.script, and the bridge from the exported graph if that fails."""
    findings: list[Finding] = []
    if sys.version_info >= (3, 14):
        later = next(cause for cause in causes.CAUSES if cause.name == "python-3.14")
        findings.append(Finding("note", later.sentence, "", later.remedy))
    return [*findings, *_natively(subject)]


def _natively(subject: Subject) -> list[Finding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(subject.model)
    except Exception as error:  # the TorchScript compiler may raise anything
        natively, bridged = failure(error, "script", source_lines.summary(error)), _bridged(subject)
        return [replace(natively, level="note", remedy="") if bridged.level == "ok" else natively, bridged]
    return [Finding("ok", "torch.jit.script compiles the model unchanged")]


def _bridged(subject: Subject) -> Finding:
    try:
        bridge.from_exported(subject.captured.require())
    except ExportError as error:
        found = failure(error, "script", source_lines.located(str(error), error))
        return replace(found, text=f"through the exported graph: {found.text}")
    return Finding("ok", "the exported graph converts to TorchScript")
