"""What the pattern of right and wrong cases says of an artifact, and which line of the model is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exporter.core import source_lines
from exporter.core.contract_records import STATE, Contract
from exporter.core.parity_records import CaseRecord, FixedSize, SizeLimit, Warned

Sizes = Mapping[str, int]
VALUES = "depends on values"
NOT_CARRIED = "the state is not carried"
UNRECORDED = "no trace and no graph records"
KINDS = ("boolean", "Python number", "Python float")  # that a tensor became, the likeliest first
DATA = "written-through-data"  # as exporter.core.causes calls it
UNSTEADY = "eager gives other values at a second run"


@dataclass(frozen=True)
class CheckedCase:
    """What a session gave at one case: an error, or what its contract said to refuse it, or how each output compares.

    An output is an OutputParity as JSON has it.
    """

    case: CaseRecord
    error: str = ""
    refused: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()

    @property
    def answer(self) -> dict[str, Any]:
        """As a session's `check` answer has it."""
        return {"case": self.case.name, "seed": self.case.seed, "error": self.error, "outputs": self.outputs}

    @property
    def fails(self) -> bool:
        """Whether the artifact raised, or an output of it lost parity."""
        return bool(self.error) or any(output["verdict"] == "FAIL" for output in self.outputs)


@dataclass(frozen=True)
class Known:
    """What is known of an artifact before it fails: what was said when it was made, and why eager is not repeatable.

    Where it is `quantized`, some values are harder than others, and that tells nothing of a branch.
    """

    warnings: tuple[Warned, ...] = ()
    limits: tuple[SizeLimit, ...] = ()
    unsteady: str = ""
    quantized: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Why an artifact fails; `cause` names an entry of `exporter.core.causes`, and `words` are what it says of it."""

    reason: str
    cause: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[FixedSize, ...] = ()


Cases = Sequence[CheckedCase]


def checked(answer: Iterable[Mapping[str, Any]], golden: Iterable[CaseRecord]) -> list[CheckedCase]:
    """The cases of a session's `check` answer, each with the golden's record of it."""
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
    """The first size that a contract does not allow: `height is 25`; "" where it allows all."""
    symbols = promised.symbols if promised else {}
    wrong = ((name, size) for name, size in sizes.items() if name in symbols and not symbols[name].allows(size))
    return next((f"{name} is {size}" for name, size in wrong), "")


def judged(cases: Cases, promised: Contract | None) -> list[CheckedCase]:
    """The cases that the contract allows, and as failures those that it was to refuse or to take and did not."""
    found = []
    for case in cases:
        beyond = outside(case.case.sizes, promised)
        if not beyond:
            found.append(CheckedCase(case.case, case.error or case.refused, "", case.outputs))
        elif not case.refused:
            error = f"{beyond}: its contract does not allow that, and it was not refused"
            found.append(CheckedCase(case.case, error, "", case.outputs))
    return found


def explain(reason: str, cases: Cases, worst: CheckedCase, known: Known) -> Diagnosis:
    """Why an artifact fails at some of its cases, by their pattern; `reason` is what is wrong at the `worst`."""
    found = _explain(reason, cases, worst, known)
    if found.cause:
        return found
    return replace(found, cause=next((one["cause"] for one in worst.outputs if one.get("cause")), ""))


def _explain(reason: str, cases: Cases, worst: CheckedCase, known: Known) -> Diagnosis:
    if known.unsteady:
        return Diagnosis(f"{UNSTEADY}: {known.unsteady}; {reason}", "unsteady", {"why": known.unsteady})
    if fixed := fixed_sizes(cases):
        return _fixed(fixed, known)
    if carried := carried_state(cases):
        return _not_carried(f"{carried}; {reason}", worst, known)
    if not known.quantized and (values := value_dependence(cases)):
        return _values(values, reason, worst, known)
    return _asked(reason, worst.case.sizes, known)


def crashed(reason: str, limits: Iterable[SizeLimit]) -> Diagnosis:
    """Why a process that runs an artifact was ended by a signal, perhaps: a size that was fixed."""
    for limit in limits:
        if limit.rule == "fixed":
            return Diagnosis(f"{reason} (perhaps because {limit})", *_of_limit(limit))
    return Diagnosis(reason)


def fixed_sizes(cases: Cases) -> tuple[FixedSize, ...]:
    """The sizes of which each alone tells the cases that pass from those that do not."""
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
    """`the state is not carried: …` where every first call of a sequence is right, and a later one is not."""
    wrong = [case for case in cases if case.case.step and case.fails]
    if not wrong or any(case.fails for case in cases if not case.case.step):
        return ""
    return f"{NOT_CARRIED}: right at the first call, wrong at {wrong[0].case}"


def value_dependence(cases: Cases) -> str:
    """`wrong at ..., right at ...`, where one size gives both; the example's values come first."""
    right: dict[tuple[tuple[str, int], ...], CaseRecord] = {}
    for case in cases:
        if not case.fails:
            right.setdefault(tuple(case.case.sizes.items()), case.case)
    for case in cases:
        if case.fails and (other := right.get(tuple(case.case.sizes.items()))):
            return f"wrong at {case.case}, right at {other}"
    return ""


def _fixed(fixed: tuple[FixedSize, ...], known: Known) -> Diagnosis:
    """With the line where torch.export fixed each size, or else those that the tracer warned of.

    Tracing says of many harmless lines that they might be wrong, so it is asked only where something is.
    """
    lines = {one: _line(one, known.limits) for one in fixed}
    said = "; ".join(f"{one} by {line}" if line else str(one) for one, line in lines.items())
    warned = dict.fromkeys(one.place for one in known.warnings if one.place and not one.unrecorded)
    if warned and not any(lines.values()):
        said = f"{said} (perhaps by {', '.join(list(warned)[:2])})"
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
    """What the example's values decided: a branch, or a state that is written where nothing records it."""
    unrecorded = _not_recorded(known.warnings)
    output = next((one["output"] for one in worst.outputs if one["verdict"] == "FAIL"), "")
    if output.startswith(STATE) and unrecorded and unrecorded[1] == DATA:
        return Diagnosis(f"{VALUES}: {pattern}; {reason} (perhaps because {unrecorded[0]})", unrecorded[1])
    if branch := _branch(known.warnings):
        return Diagnosis(f"branch {VALUES} ({branch}): {pattern}; {reason}", "branch-on-values")
    asked = _asked(reason, worst.case.sizes, known)
    return Diagnosis(f"{VALUES}: {pattern}; {asked.reason}", asked.cause, asked.words)


def _not_recorded(warned: Iterable[Warned]) -> tuple[str, str] | None:
    """What a trace does not record of a call that changes state, with its line; and the cause."""
    warned = tuple(warned)
    if place := next((one.place for one in warned if one.unrecorded), ""):
        return f"{UNRECORDED} what is written through .data ({place})", DATA
    if place := _branch(warned, (*KINDS, "Python integer", "Python index")):
        return f"the trace holds a number that it took from a tensor ({place})", "number-in-a-trace"
    return None


def _asked(reason: str, sizes: Sizes, known: Known) -> Diagnosis:
    """With what torch.export made of a size that the case has and no contract can say, where it may be that."""
    for limit in known.limits:
        if not any(symbol in sizes for symbol in limit.symbols):
            continue
        if limit.follows and limit.place:
            return Diagnosis(f"{reason} (perhaps because {limit})", *_of_limit(limit))
        if limit.rule == "steps":
            said = f"(perhaps because {limit}; a contract says multiples alone: give such an example)"
            return Diagnosis(f"{reason} {said}")
    return Diagnosis(reason)


def _of_limit(limit: SizeLimit) -> tuple[str, dict[str, str]]:
    """The cause that a fixed size is, with its words."""
    if limit.follows:
        return "size-baked", {"what": limit.of, "size": limit.to}
    return "dimension-baked", {"dim": limit.of, "size": limit.to}


def _branch(warned: Iterable[Warned], kinds: Sequence[str] = KINDS) -> str:
    """Where a tensor became a boolean, or else a number: in the model if anywhere, not in torch's own checks."""
    placed = [one for one in warned if one.place]
    ours = [one for one in placed if not source_lines.of_library(one.place)]
    tried = [(group, kind) for group in (ours, placed) for kind in kinds]
    return next((one.place for group, kind in tried for one in group if kind in one.message), "")
