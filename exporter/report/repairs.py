"""Render the report of `exporter repair` as plain text: the cause, the changes with their proof, and the diff last."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.core import source_lines
from exporter.workers.repair.records import Outcomes, Proof, Repair

SHOWN = 12  # number of trials to list


def render(repair: Repair, written: bool = False) -> str:
    """Return the whole report. The diff is the end, in a form that `patch -p0` and `git apply -p0` accept."""
    head = "\n".join(line for line in _lines(repair, written))
    diff = "".join(patch.diff for patch in repair.patches)
    return source_lines.printable(f"{head}\n") + (f"\n{source_lines.printable(diff)}" if diff else "")


def _lines(repair: Repair, written: bool) -> Iterator[str]:
    yield ", ".join((f"{repair.model} on {repair.device}", *(f"{n} {size}" for n, size in repair.sizes.items())))
    if repair.verdict == "accepted":
        yield "torch.export accepts it as it is, at every promised size: there is nothing to repair"
        return
    yield f"torch.export: {repair.cause.removeprefix('torch.export: ')}"
    if repair.place:
        yield f"at {source_lines.near(repair.place)}"
    if repair.verdict == "refused":
        yield from _refused(repair)
    else:
        yield from _repaired(repair, written)


def _refused(repair: Repair) -> Iterator[str]:
    yield ""
    yield "no change was proven, so none is shown"
    shown = repair.tried[-SHOWN:]
    if len(repair.tried) > SHOWN:
        yield f"the last {SHOWN} of {len(repair.tried)} trials:"
    for one in shown:
        yield f"  tried{_at(one.place)}: {one.text}"
        yield f"    {one.reason}"
    if not shown:
        yield "  no rule applies to this line"
    if repair.remedy:
        yield f"remedy: {repair.remedy}"


def _repaired(repair: Repair, written: bool) -> Iterator[str]:
    yield ""
    for one in repair.steps:
        yield f"  fix{_at(one.place)}: {one.text}{f'; {one.note}' if one.note else ''}"
    if repair.options:
        yield f"  pass: {' '.join(repair.options)}"
    if repair.proof:
        yield from _proof(repair.proof)
    if written:
        yield (
            f"written to {', '.join(patch.file for patch in repair.patches)}" if repair.patches else "nothing to write"
        )
    elif repair.patches:
        yield "nothing was written: --write applies this patch"


def _proof(proof: Proof) -> Iterator[str]:
    returned = proof.cases - proof.refused
    yield (
        f"proven on {returned} inputs ({', '.join(proof.sizes)}): the patched model and its exported program return "
        f"what the original returns; the largest difference is {proof.max_abs:.3g}"
    )
    for one in proof.outcomes:
        yield f"  {' '.join(one.test.split())} was {_counts(one)} ({source_lines.near(one.place)})"
    if proof.inputs_kept:
        yield "  the original changes the tensors that it is given; the patched model does not"
    if proof.refused:
        taken = f", {proof.unchecked} of which the exported program takes" if proof.unchecked else ""
        yield f"  the original raises for {proof.refused} more inputs{taken}"


def _counts(one: Outcomes) -> str:
    return f"true in {one.true} calls and false in {one.false}"


def _at(place: str) -> str:
    return f" at {source_lines.near(place)}" if place else ""
