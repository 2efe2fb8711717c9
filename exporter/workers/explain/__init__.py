"""What in a model is in the way of each target, found without exporting it.

The parent's side: torch is never imported here. Each section is found in a child (`exporter.workers.explain.child`) by
a module of its own; one that crashes is a line in its section, and the others still come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exporter import targets
from exporter.core import causes, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError
from exporter.workers.children import SIDE_BY_SIDE, Child, Zygote
from exporter.workers.messages import Job

SECTIONS = ("trace", "script", "compile", "export", "onnx", "operators")  # each a module here
SCHEMA = 1


@dataclass(frozen=True)
class Finding:
    """One line: `ok` is no obstacle, `note` is worth knowing, `bad` is in the way."""

    level: Literal["ok", "note", "bad"]
    text: str
    place: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Section:
    """What one part of torch makes of the model."""

    name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Explanation:
    """The whole report."""

    model: str
    device: str
    sizes: dict[str, int]
    contract: Contract
    sections: tuple[Section, ...]
    schema: int = SCHEMA


def failure(error: BaseException, target: str = "", message: str = "") -> Finding:
    """What an error, or a message of it, says: its cause, its place, and what to do about it."""
    message, remedy = message or str(error), getattr(error, "remedy", "")
    cause, raw = causes.of(error, target, message), causes.shorten(source_lines.without(message))
    text = f"{cause.sentence}: {raw}" if cause else raw
    return Finding("bad", text, source_lines.place(message), remedy or (cause.remedy if cause else ""))


def sections() -> tuple[str, ...]:
    """All, in order; those of other packages' targets stand before the last."""
    theirs = (name for name in targets.usable() if name not in SECTIONS and targets.facts(name).explain)
    return (*SECTIONS[:-1], *theirs, *SECTIONS[-1:])


def run(job: Job, log: Path, begun: Callable[[str], None], timeout: float) -> Explanation:
    """All sections, one after the other; `begun` hears the name of each. `timeout` is in seconds, of one step.

    Raises what `exporter export` would when the model does not load or does not run.
    """
    found: list[Section] = []
    names = sections()
    with Zygote(SIDE_BY_SIDE) as zygote:
        while True:
            begun("load model")
            left = names[len(found) :]
            child = zygote.spawn(
                "explain", "exporter.workers.explain.child:examine", {"job": job, "sections": left}, log
            )
            sizes, contract = child.expect("subject", timeout)
            found += _sections(child, left, begun, timeout)
            if len(found) == len(names):
                return Explanation(job.model, job.options.device, sizes, contract, tuple(found))


def _sections(child: Child, names: Sequence[str], begun: Callable[[str], None], timeout: float) -> Iterator[Section]:
    """Sections as they come; one in which the child ends is the last."""
    for name in names:
        begun(name)
        try:
            yield child.expect("section", timeout)
        except ExporterError as error:
            yield Section(name, (failure(error, name),))
            return
