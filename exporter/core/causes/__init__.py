"""Known causes of failure: recognise one in an error message and explain what to do about it. Never imports torch.

The tables are in the modules of this package. Patterns match messages of torch.jit, torch.export, torch.onnx,
AOTInductor, onnxruntime and exporter-run; errors that exporter raises name their cause. A pattern's named groups fill
the placeholders in the sentence and the remedy.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from exporter.core.causes import _code, _machine, _operators, _torchscript, _values
from exporter.core.causes._cause import Cause as Cause
from exporter.core.errors import BothFailed, ExporterError
from exporter.core.source_lines import place

INT8 = "ship bf16 or fp16, or int8 by another target"  # the default remedy for a quantized variant
OUT_OF_MEMORY, KILLED = "out-of-memory", "killed"
REPAIR = "`exporter repair MODEL` may find a patch"
REASON = 320  # maximum number of characters of the raw message in a reason
CAUSES: tuple[Cause, ...] = (
    *_values.CAUSES,
    *_operators.CAUSES,
    *_code.CAUSES,
    *_torchscript.CAUSES,
    *_machine.CAUSES,
)

_BY_NAME = {cause.name: cause for cause in CAUSES}
_COMPILED = tuple((cause, re.compile(pattern)) for cause in CAUSES for pattern in cause.patterns)
_TORCHSCRIPT = ("trace", "script")


def find(text: str, target: str = "", python: tuple[int, ...] = sys.version_info[:2]) -> Cause | None:
    """Return the cause whose pattern matches first in a message, with the remedy for the target; None if unknown.

    On a Python version that TorchScript does not support, unknown errors of trace and script are attributed to that.
    """
    meant = [(cause, pattern) for cause, pattern in _COMPILED if not (target and cause.only) or target in cause.only]
    found = [(match.start(), cause, match) for cause, pattern in meant if (match := pattern.search(text))]
    if found:
        _, cause, match = min(found, key=lambda one: one[0])
        words = {name: word or "" for name, word in match.groupdict().items()}
        return _filled(cause, words, target)
    if target in _TORCHSCRIPT and python >= (3, 14):
        return next(cause for cause in CAUSES if cause.name == "python-3.14")
    return None


def of(error: BaseException, target: str = "", text: str = "") -> Cause | None:
    """Return the cause that the error itself names, or else what `find` returns for `text` or the error's message."""
    if blame := getattr(error, "blame", None):
        return named(blame.cause, target, blame.words)
    return find(text or str(error), target)


def named(name: str, target: str = "", words: Mapping[str, str] | None = None) -> Cause:
    """Return the cause of this name with its placeholders filled. Raises KeyError for an unknown name."""
    return _filled(_BY_NAME[name], dict(words or {}), target)


def _filled(cause: Cause, words: dict[str, str], target: str) -> Cause:
    """Fill the placeholders; a missing word in brackets or after a final colon is removed with its punctuation."""
    known = collections.defaultdict(str, words)
    sentence = cause.sentence.format_map(known).replace(" ()", "").removesuffix(": ")
    remedy = cause.remedies.get(target, cause.remedy).format_map(known)
    return replace(cause, sentence=sentence, remedy=remedy)


class Described(NamedTuple):
    """Reason and remedy of a failed row, and the name of the cause, which is "" if unknown."""

    reason: str
    remedy: str
    cause: str


def describe(error: ExporterError, target: str = "", text: str = "") -> Described:
    """Describe an error for a row of the report; `text` is an extended form of the error's message.

    The reason is the cause's sentence, the place and the shortened message. Without a known cause it is the message
    alone. The remedy is the error's own, or else that of the cause.
    """
    text = text or str(error)
    cause = of(error, target, text)
    if cause is None:
        return Described(text, error.remedy or with_repair("", None, text), "")
    where = place(text)
    raw = shorten(text.replace(f" ({where})", ""))
    reason = f"{cause.sentence}{f' ({where})' if where else ''}"
    other = of(error.older, target) if isinstance(error, BothFailed) else None
    if other is not None and other.name != cause.name:
        reason = f"{reason}; in torch's older exporter, {other.sentence[0].lower()}{other.sentence[1:]}"
    remedy = error.remedy or with_repair(cause.remedy, cause, text)
    return Described(f"{reason}: {raw}", remedy, cause.name)


def with_repair(remedy: str, cause: Cause | None, text: str) -> str:
    """Return the remedy, followed by `exporter repair` if that may help against torch.export's message `text`."""
    helps = text.startswith("torch.export: ") and (cause is None or cause.repairable)
    return "; ".join(filter(None, (remedy, REPAIR))) if helps else remedy


def remedy(text: str, target: str = "") -> str:
    """Return the remedy for the cause of a message; "" if the cause is unknown."""
    cause = find(text, target)
    return cause.remedy if cause else ""


def shorten(text: str) -> str:
    """Return one line of at most REASON characters, truncated between words."""
    line = " ".join(text.split())
    return line if len(line) <= REASON else line[:REASON].rpartition(" ")[0] + " …"
