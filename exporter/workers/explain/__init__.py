"""Find what in a model prevents each target, without exporting the model.

This is the parent's side, which never imports torch. A child (`exporter.workers.explain.child`) runs one module per
section. A crash becomes a finding of its section, and the remaining sections still run.
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

SECTIONS = ("trace", "script", "compile", "export", "onnx", "operators")  # each is a module of this package
SCHEMA = 1


@dataclass(frozen=True)
class Finding:
    """One line of the report: `ok` is not an obstacle, `note` is worth knowing, `bad` prevents a correct export."""

    level: Literal["ok", "note", "bad"]
    text: str
    place: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Section:
    """The findings of one section, named after a target, or `operators`."""

    name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Explanation:
    """The complete report on a model."""

    model: str
    device: str
    sizes: dict[str, int]
    contract: Contract
    sections: tuple[Section, ...]
    schema: int = SCHEMA


def counted(count: int, noun: str) -> str:
    """Return the number and the noun, in the plural unless it is one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def failure(error: BaseException, target: str = "", message: str = "") -> Finding:
    """Return a finding with the cause, place and remedy of an error. `message` replaces the error's own text."""
    message, remedy = message or str(error), getattr(error, "remedy", "")
    cause, raw = causes.of(error, target, message), causes.shorten(source_lines.without(message))
    text = f"{cause.sentence}: {raw}" if cause else raw
    remedy = remedy or causes.with_repair(cause.remedy if cause else "", cause, message)
    return Finding("bad", text, source_lines.place(message), remedy)


def sections() -> tuple[str, ...]:
    """Return the names of all sections in order. Those of targets from other packages come before the last."""
    theirs = (name for name in targets.usable() if name not in SECTIONS and targets.facts(name).explain)
    return (*SECTIONS[:-1], *theirs, *SECTIONS[-1:])


def run(job: Job, log: Path, begun: Callable[[str], None], timeout: float) -> Explanation:
    """Run all sections in order. `begun` is called with the name of each; `timeout` is in seconds and limits each step.

    Raises the same errors as `exporter export` if the model does not load or run.
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
    """Yield sections as they arrive. If the child fails in a section, that section is the last."""
    for name in names:
        begun(name)
        try:
            yield child.expect("section", timeout)
        except ExporterError as error:
            yield Section(name, (failure(error, name),))
            return
