"""Known causes of failure: what in the model is in the way, and what to do about it. Texts in, words out; never torch.

Each is an entry of one of the tables beside this file. Patterns are for messages of torch.jit, torch.export,
torch.onnx, AOTInductor, onnxruntime and exporter-run; what exporter itself raises names its cause. A pattern's named
groups fill the words of its sentence and remedy.
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

INT8 = "ship bf16 or fp16, or int8 by another target"  # where nothing better is known of a quantized variant
OUT_OF_MEMORY, KILLED = "out-of-memory", "killed"
REASON = 320  # characters of a raw message that a reason keeps
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
    """The cause that a message names first, its words filled in, with the remedy for the target; None when unknown.

    On a Python that TorchScript does not support, what else is unknown there is laid to that.
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
    """The cause that whoever raised the error knows, else what `find` reads in the text, or in what the error says."""
    if blame := getattr(error, "blame", None):
        return named(blame.cause, target, blame.words)
    return find(text or str(error), target)


def named(name: str, target: str = "", words: Mapping[str, str] | None = None) -> Cause:
    """The cause of this name, its words filled in. KeyError for a name that no cause has."""
    return _filled(_BY_NAME[name], dict(words or {}), target)


def _filled(cause: Cause, words: dict[str, str], target: str) -> Cause:
    """Its sentence and remedy with the words of a message; a word in brackets or after a colon may be missing."""
    known = collections.defaultdict(str, words)
    sentence = cause.sentence.format_map(known).replace(" ()", "").removesuffix(": ")
    remedy = cause.remedies.get(target, cause.remedy).format_map(known)
    return replace(cause, sentence=sentence, remedy=remedy)


class Described(NamedTuple):
    """Reason and remedy of a failed row, and the cause's name; "" where it is unknown."""

    reason: str
    remedy: str
    cause: str


def describe(error: ExporterError, target: str = "", text: str = "") -> Described:
    """What a row says of an error; `text` is what the error says, and more.

    The reason is the cause's sentence, the place, and the raw message shortened; a message of no known cause is kept
    as it is. The remedy is the cause's where the error has none.
    """
    text = text or str(error)
    cause = of(error, target, text)
    if cause is None:
        return Described(text, error.remedy, "")
    where = place(text)
    raw = shorten(text.replace(f" ({where})", ""))
    said = f"{cause.sentence}{f' ({where})' if where else ''}"
    other = of(error.older, target) if isinstance(error, BothFailed) else None
    if other is not None and other.name != cause.name:
        said = f"{said}; in torch's older exporter, {other.sentence[0].lower()}{other.sentence[1:]}"
    return Described(f"{said}: {raw}", error.remedy or cause.remedy, cause.name)


def remedy(text: str, target: str = "") -> str:
    """What to do about a message's cause; "" when it is unknown."""
    cause = find(text, target)
    return cause.remedy if cause else ""


def shorten(text: str) -> str:
    """One line of at most REASON characters, cut between words."""
    line = " ".join(text.split())
    return line if len(line) <= REASON else line[:REASON].rpartition(" ")[0] + " …"
