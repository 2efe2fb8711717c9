"""Diagnoses a failing artifact: the pattern of its right and wrong cases, and the line of the model to blame.

This file is long because each pattern is tried in a fixed order, and the order is part of the diagnosis.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exporter.core import expressions, source_lines
from exporter.core.contract_records import STATE, Contract
from exporter.core.parity_records import CaseRecord, FixedSize, SizeLimit, Warned

Sizes = Mapping[str, int]
VALUES = "depends on values"
SIZES = "depends on sizes"
NOT_CARRIED = "the state is not carried"
ADDS_UP = "errors add up from call to call"
UNRECORDED = "no trace or graph records writes through .data"
KINDS = ("boolean", "Python number", "Python float")  # what a tensor was converted to, the likeliest cause first
NUMBERS = (*KINDS[1:], "Python integer", "Python index")
DATA = "written-through-data"  # the name in exporter.core.causes
ROUNDING = "rounding-decides"
NAN = "not-a-number"
UNSTEADY = "eager returns other values at a second run"


@dataclass(frozen=True)
class CheckedCase:
    """A session's result for one case: an error, the contract's reason for refusing it, or each output's parity.

    Each output is an OutputParity in its JSON form.
    """

    case: CaseRecord
    error: str = ""
    refused: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()

    @property
    def answer(self) -> dict[str, Any]:
        """Return the case in the form of a session's `check` answer."""
        return {"case": self.case.name, "seed": self.case.seed, "error": self.error, "outputs": self.outputs}

    @property
    def fails(self) -> bool:
        """Return whether the artifact raised or one of its outputs failed parity."""
        return bool(self.error) or any(output["verdict"] == "FAIL" for output in self.outputs)


@dataclass(frozen=True)
class Known:
    """What is known about an artifact before it fails: warnings and limits from its export, and whether eager repeats.

    `unsteady` is why eager is not repeatable. A `quantized` artifact is less accurate at some values than at others,
    which is not evidence of a branch. `example` is the sizes that it was exported with, if they are known.
    """

    warnings: tuple[Warned, ...] = ()
    limits: tuple[SizeLimit, ...] = ()
    unsteady: str = ""
    quantized: bool = False
    example: Sizes = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Why an artifact fails; `cause` names an entry of `exporter.core.causes`, and `words` fills in its templates."""

    reason: str
    cause: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[FixedSize, ...] = ()


Cases = Sequence[CheckedCase]


def checked(answer: Iterable[Mapping[str, Any]], golden: Iterable[CaseRecord]) -> list[CheckedCase]:
    """Return the cases of a session's `check` answer, each with its record from the golden."""
    known = {(one.name, one.seed): one for one in golden}
    return [
        CheckedCase(
            known.get((case["case"], case["seed"])) or CaseRecord(case["case"], case["seed"]),
            case["error"],
            str(case.get("refused", "")),
            tuple(case["outputs"]),
        )
        for case in answer
    ]


def outside(sizes: Sizes, promised: Contract | None) -> str:
    """Return the first size that a contract does not allow (`height is 25`), or "" if it allows all."""
    symbols = promised.symbols if promised else {}
    wrong = ((name, size) for name, size in sizes.items() if name in symbols and not symbols[name].allows(size))
    return next((f"{name} is {size}" for name, size in wrong), "")


def judged(cases: Cases, promised: Contract | None) -> list[CheckedCase]:
    """Return the cases that count for the verdict.

    Refusing a case that the contract allows is a failure, and so is accepting one that it does not allow. Cases that
    were rightly refused are left out.
    """
    found = []
    for case in cases:
        beyond = outside(case.case.sizes, promised)
        if not beyond:
            found.append(CheckedCase(case.case, case.error or case.refused, "", case.outputs))
        elif not case.refused:
            error = f"{beyond}: the contract does not allow this, but it was accepted"
            found.append(CheckedCase(case.case, error, "", case.outputs))
    return found


def explain(reason: str, cases: Cases, worst: CheckedCase, known: Known) -> Diagnosis:
    """Diagnose why an artifact fails from the pattern of its cases; `reason` says what is wrong at the `worst` case."""
    found = _explain(reason, cases, worst, known)
    if found.cause:
        return found
    return replace(found, cause=next((one["cause"] for one in worst.outputs if one.get("cause")), ""))


def _is_eagers_nan(case: CheckedCase) -> bool:
    """Return whether a case fails only because eager itself returns NaN."""
    return not case.error and all(one.get("cause") == NAN for one in case.outputs if one["verdict"] == "FAIL")


def _explain(reason: str, cases: Cases, worst: CheckedCase, known: Known) -> Diagnosis:
    if _fails_at_the_example(cases, known):  # where a fixed size is right
        limits = tuple(one for one in known.limits if one.rule != "fixed" or _decides(one, cases))
        known = replace(known, limits=limits)
    if known.unsteady:
        return Diagnosis(f"{UNSTEADY}: {known.unsteady}; {reason}", "unsteady", {"why": known.unsteady})
    if any(one["verdict"] == "FAIL" and one.get("cause") == ROUNDING for one in worst.outputs):
        return Diagnosis(reason, ROUNDING)
    if all(_is_eagers_nan(case) for case in cases if case.fails):
        return Diagnosis(reason, NAN)
    if fixed := fixed_sizes(cases):
        return _fixed(fixed, known)
    if pattern := carried_state(cases):
        second = any(case.fails and case.case.step == 1 for case in cases)
        if known.quantized and not second and not _not_recorded(known.warnings):
            return _asked(f"{ADDS_UP}: {pattern}; {reason}", worst.case.sizes, known)
        return _not_carried(f"{NOT_CARRIED}: {pattern}; {reason}", worst, known)
    if not known.quantized:
        values = value_dependence(cases)
        if sizes := size_dependence(cases, 2 if values else 1, known.example):
            found = _sizes(sizes, reason, worst, replace(known, limits=_possible(known.limits, worst, cases)))
            at_example = found.cause == "size-dependent" and _fails_at_the_example(cases, known)
            return replace(found, cause="wrong-at-the-example") if at_example else found
        if values:
            return _values(values, reason, worst, known)
    return _asked(reason, worst.case.sizes, known)


def _fails_at_the_example(cases: Cases, known: Known) -> bool:
    return any(case.fails and case.case.sizes == known.example for case in cases)


def _decides(limit: SizeLimit, cases: Cases) -> bool:
    """Return whether there are right cases of drawn values, all where a fixed size is what it was fixed at."""
    passing = [case.case.sizes for case in cases if not case.fails and not case.case.values]
    return bool(passing) and all(str(expressions.value(limit.of, sizes)) == limit.to for sizes in passing)


def _possible(limits: Iterable[SizeLimit], worst: CheckedCase, cases: Cases) -> tuple[SizeLimit, ...]:
    """Return the limits that may explain the worst case: those on sizes that do not occur in right cases, too.

    The calls of one sequence count as one case.
    """
    wrong = [case.case.sizes for case in cases if case.fails]
    right = [case.case.sizes for case in cases if not case.case.values and case.case.sizes not in wrong]
    sizes = worst.case.sizes

    def passes(symbols: Sequence[str]) -> bool:
        own = [sizes.get(symbol) for symbol in symbols]
        return any([other.get(symbol) for symbol in symbols] == own for other in right)

    return tuple(one for one in limits if not passes(one.symbols))


def crashed(reason: str, limits: Iterable[SizeLimit]) -> Diagnosis:
    """Diagnose why a process that ran an artifact was ended by a signal; a fixed size is a possible cause."""
    for limit in limits:
        if limit.rule == "fixed":
            return Diagnosis(f"{reason} (perhaps because {limit})", *_of_limit(limit))
    return Diagnosis(reason)


def fixed_sizes(cases: Cases) -> tuple[FixedSize, ...]:
    """Return the sizes that separate passing from failing cases: only one value passes, and all others fail."""
    seen: dict[str, tuple[set[int], set[int]]] = {}
    for case in cases:
        for name, size in case.case.sizes.items():
            seen.setdefault(name, (set(), set()))[case.fails].add(size)
    return tuple(
        FixedSize(name, next(iter(good)))
        for name, (good, bad) in seen.items()
        if len(good) == 1 and bad and not good & bad
    )


def carried_state(cases: Cases) -> str:
    """Return `right at the first call, wrong at …` if that holds for every sequence with a wrong call, else ""."""
    wrong = [case for case in cases if case.case.step and case.fails]
    if not wrong or any(case.fails for case in cases if not case.case.step):
        return ""
    return f"right at the first call, wrong at {wrong[0].case}"


def value_dependence(cases: Cases) -> str:
    """Return `wrong at ..., right at ...` if cases of the same sizes both pass and fail, else "".

    Zeros and tiny values are no evidence: many wrong operators are right there.
    """
    right: dict[tuple[tuple[str, int], ...], CaseRecord] = {}
    for case in cases:
        if not case.fails and case.case.values not in ("zeros", "tiny"):
            right.setdefault(tuple(case.case.sizes.items()), case.case)
    for case in cases:
        if case.fails and (other := right.get(tuple(case.case.sizes.items()))):
            return f"wrong at {case.case}, right at {other}"
    return ""


def size_dependence(cases: Cases, seeds: int, example: Sizes | None = None) -> str:
    """Return `wrong at ..., right at ...` if the sizes alone decide about cases with drawn values, else "".

    Wrong sizes need at least this number of seeds. The calls of one sequence count as one case.
    """
    seen: dict[tuple[tuple[str, int], ...], dict[int, list[CheckedCase]]] = {}
    for case in cases:
        if not case.case.values and case.case.sample is None:
            seen.setdefault(tuple(case.case.sizes.items()), {}).setdefault(case.case.seed, []).append(case)
    wrong: list[CaseRecord] = []
    right: list[CaseRecord] = []
    for by_seed in seen.values():
        fail = {any(case.fails for case in calls) for calls in by_seed.values()}
        if len(fail) > 1 or (fail == {True} and len(by_seed) < seeds):
            return ""
        (wrong if True in fail else right).append(next(iter(by_seed.values()))[0].case)
    if not wrong or not right:
        return ""
    return f"wrong at {wrong[0]}{' (the example)' if wrong[0].sizes == example else ''}, right at {right[0]}"


def _sizes(pattern: str, reason: str, worst: CheckedCase, known: Known) -> Diagnosis:
    """Diagnose dependence on sizes, with the branch that a trace may have dropped or the range of torch.export."""
    asked = _asked(reason, worst.case.sizes, known)
    if asked.cause:
        return Diagnosis(f"{SIZES}: {pattern}; {asked.reason}", asked.cause, asked.words)
    limits = [one for one in known.limits if one.rule != "steps" and set(one.symbols) & set(worst.case.sizes)]
    limits.sort(key=lambda one: one.rule != "fixed")
    because = next(map(str, limits), _of_sizes(known.warnings))
    said = f" (perhaps because {because})" if because else ""
    return Diagnosis(f"{SIZES}: {pattern}; {asked.reason}{said}", "size-dependent")


def _of_sizes(warned: Iterable[Warned]) -> str:
    """Return what a trace may have kept of the example, a side of a branch or a number; prefer lines of the model."""
    placed = [one for one in warned if one.place]
    for group in ([one for one in placed if not source_lines.of_library(one.place)], placed):
        if line := _branch(group, KINDS[:1]):
            return f"a branch drops one side ({line})"
        if line := _branch(group, NUMBERS):
            return f"the trace keeps a number of the example ({line})"
    return ""


def _fixed(fixed: tuple[FixedSize, ...], known: Known) -> Diagnosis:
    """Name the line where torch.export fixed each size, or else the lines that the tracer warned about.

    The tracer also warns about many harmless lines, so its warnings are used only for an artifact that is wrong.
    """
    lines = {one: _line(one, known.limits) for one in fixed}
    said = "; ".join(f"{one} by {line}" if line else str(one) for one, line in lines.items())
    places = dict.fromkeys(one.place for one in known.warnings if one.place and not one.unrecorded)
    if places and not any(lines.values()):
        warned = [one for one in places if not source_lines.of_library(one)] or list(places)
        said = f"{said} (perhaps by {', '.join(map(source_lines.shortened, warned[:2]))})"
    words = {"dim": fixed[0].symbol, "size": str(fixed[0].size)}
    return Diagnosis(said, "dimension-baked", words, fixed)


def _line(fixed: FixedSize, limits: Iterable[SizeLimit]) -> str:
    found = (one.place for one in limits if one.rule == "fixed" and fixed.symbol in one.symbols)
    return next(filter(None, found), "")


def _not_carried(reason: str, worst: CheckedCase, known: Known) -> Diagnosis:
    if why := _not_recorded(known.warnings):
        said = reason.replace(NOT_CARRIED, f"{NOT_CARRIED}, perhaps because {why[0]}", 1)
        return Diagnosis(said, why[1])
    return _asked(reason, worst.case.sizes, known)


def _values(pattern: str, reason: str, worst: CheckedCase, known: Known) -> Diagnosis:
    """Diagnose dependence on values: a branch, or state whose writes are not recorded."""
    unrecorded = _not_recorded(known.warnings)
    output = next((one["output"] for one in worst.outputs if one["verdict"] == "FAIL"), "")
    if output.startswith(STATE) and unrecorded and unrecorded[1] == DATA:
        return Diagnosis(f"{VALUES}: {pattern}; {reason} (perhaps because {unrecorded[0]})", unrecorded[1])
    if branch := _branch(known.warnings):
        return Diagnosis(f"branch {VALUES} ({branch}): {pattern}; {reason}", "branch-on-values")
    asked = _asked(reason, worst.case.sizes, known)
    return Diagnosis(f"{VALUES}: {pattern}; {asked.reason}", asked.cause, asked.words)


def _not_recorded(warned: Iterable[Warned]) -> tuple[str, str] | None:
    """Return what a trace failed to record of a state change, with its line, and the cause."""
    warned = tuple(warned)
    if place := next((one.place for one in warned if one.unrecorded), ""):
        return f"{UNRECORDED} ({place})", DATA
    if place := _branch(warned, (*KINDS[:1], *NUMBERS)):
        return f"the trace holds a constant that was computed from a tensor ({place})", "number-in-a-trace"
    return None


def _asked(reason: str, sizes: Sizes, known: Known) -> Diagnosis:
    """Add a limit of torch.export on the case's sizes that no contract can express, if it may be the cause."""
    for limit in known.limits:
        if not any(symbol in sizes for symbol in limit.symbols):
            continue
        if limit.follows and limit.place:
            return Diagnosis(f"{reason} (perhaps because {limit})", *_of_limit(limit))
        if limit.rule == "steps":
            said = f"(perhaps because {limit}; contracts express only multiples: use an example size that is one)"
            return Diagnosis(f"{reason} {said}")
    return Diagnosis(reason)


def _of_limit(limit: SizeLimit) -> tuple[str, dict[str, str]]:
    """Return the cause for a fixed size, with its words."""
    if limit.follows:
        file, _, number = limit.place.rpartition(":")
        line = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
        compares = line.startswith(("if ", "elif ", "while "))
        cause = "length-of-istft" if "istft(" in line else "size-compared" if compares else "size-baked"
        return cause, {"what": limit.of, "size": limit.to}
    return "dimension-baked", {"dim": limit.of, "size": limit.to}


def _branch(warned: Iterable[Warned], kinds: Sequence[str] = KINDS) -> str:
    """Return where a tensor became a boolean, or else a number; lines of the model come before those of libraries."""
    placed = [one for one in warned if one.place]
    ours = [one for one in placed if not source_lines.of_library(one.place)]
    tried = [(group, kind) for group in (ours, placed) for kind in kinds]
    found = (one.place for group, kind in tried for one in group if kind in one.message)
    return source_lines.shortened(next(found, ""))
