"""What the pattern of right and wrong cases says of an artifact. Pure functions over a session's `check` answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter import places, unseen
from exporter.records import Contract

Cases = Sequence[Mapping[str, Any]]
_SIZE = re.compile(r"(\S+)=(\d+)")
_HELD = re.compile(r"torch\.export fixed (?!\w+ at )(.+) at \d+ \(.+\)")  # no dimension itself: what follows from one
_FIXED = re.compile(r"torch\.export fixed .+ at \d+(?: \(.+\))?")
_ASKED = re.compile(r"torch\.export takes (\S+) only as ")
VALUES = "depends on values"
NOT_CARRIED = "the state is not carried"
UNRECORDED = "no trace and no graph records"
KINDS = ("boolean", "Python number", "Python float")  # that a tensor became, the likeliest first
UNSTEADY = "eager gives other values at a second run"


def fails(case: Mapping[str, Any]) -> bool:
    """Whether an artifact raised at this case, or an output of it lost parity."""
    return bool(case["error"]) or any(output["verdict"] == "FAIL" for output in case["outputs"])


def outside(case: str, promised: Contract | None) -> str:
    """The first size of a case, by its name, that a contract does not allow: `height is 25`; "" where it allows all."""
    symbols = promised.symbols if promised else {}
    sizes = [(name, int(size)) for name, size in _SIZE.findall(case) if name in symbols]
    return next((f"{name} is {size}" for name, size in sizes if not symbols[name].allows(size)), "")


def judged(cases: Cases, promised: Contract | None) -> list[dict[str, Any]]:
    """The cases that the contract allows, and as failures those that it was to refuse or to take and did not."""
    found = []
    for case in cases:
        refused, beyond = str(case.get("refused", "")), outside(case["case"], promised)
        if not beyond:
            found.append({**case, "error": case["error"] or refused})
        elif not refused:
            found.append({**case, "error": f"{beyond}: its contract does not allow that, and it was not refused"})
    return found


def fixed_sizes(cases: Cases) -> list[str]:
    """`batch is fixed at 2` for each size that alone tells the cases that pass from those that do not."""
    seen: dict[str, tuple[set[str], set[str]]] = {}
    for case in cases:
        for name, size in _SIZE.findall(case["case"]):
            seen.setdefault(name, (set(), set()))[fails(case)].add(size)
    if not any(map(fails, cases)):
        return []
    return [
        f"{name} is fixed at {next(iter(good))}"
        for name, (good, bad) in seen.items()
        if len(good) == 1 and bad and not good & bad
    ]


def carried_state(cases: Cases) -> str:
    """`the state is not carried: …` where every first call of a sequence is right, and a later one is not."""
    later = [case for case in cases if re.search(r" step \d+$", case["case"])]
    wrong = [case for case in later if fails(case)]
    if not wrong or any(fails(case) for case in cases if case not in later):
        return ""
    return f"{NOT_CARRIED}: right at the first call, wrong at {_name(wrong[0])}"


def value_dependence(cases: Cases) -> str:
    """`depends on values: wrong at ..., right at ...`, where one size gives both; the example's values come first."""
    right: dict[tuple[tuple[str, str], ...], str] = {}
    for case in cases:
        if not fails(case):
            right.setdefault(_sizes(case), _name(case))
    wrong = [case for case in cases if fails(case) and _sizes(case) in right]
    if not wrong:
        return ""
    return f"{VALUES}: wrong at {_name(wrong[0])}, right at {right[_sizes(wrong[0])]}"


def _sizes(case: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(_SIZE.findall(case["case"]))


def _name(case: Mapping[str, Any]) -> str:
    return f"{case['case']} seed {case['seed']}" if case["seed"] else str(case["case"])


def with_place(reason: str, warnings: Iterable[str]) -> str:
    """The reason with the source line that is to blame.

    `warnings` are TracerWarnings, `file:line: message`, and what torch.export fixed, `torch.export fixed NAME at N
    (file:line)`. Tracing says of many harmless lines that they might be wrong, so it is asked only where something is.
    """
    warnings = list(warnings)
    named = "; ".join(_fixed_by(part, warnings) for part in reason.split("; "))
    if named != reason:
        return named
    warned = [(place, message) for place, colon, message in (w.partition(": ") for w in warnings) if colon]
    unrecorded = _not_recorded(warned)
    if VALUES in reason and "; state." in reason and unrecorded.startswith(UNRECORDED):
        return f"{reason} (perhaps because {unrecorded})"
    if VALUES in reason and (branch := _branch(warned)):
        return reason.replace(VALUES, f"branch {VALUES} ({branch})", 1)
    fixing = [place for place, message in warned if message != unseen.SAID]
    if " is fixed at " in reason and fixing:
        return f"{reason} (perhaps by {', '.join(list(dict.fromkeys(fixing))[:2])})"
    if NOT_CARRIED in reason and unrecorded:
        return reason.replace(NOT_CARRIED, f"{NOT_CARRIED}, perhaps because {unrecorded}", 1)
    if " was ended by SIG" in reason and (fixed := [w for w in warnings if _FIXED.fullmatch(w)]):
        return f"{reason} (perhaps because {fixed[0]})"
    return _asked(reason, warnings)


def _not_recorded(warned: Sequence[tuple[str, str]]) -> str:
    """What a trace does not record of a call that changes state, with its line."""
    if place := next((place for place, message in warned if message == unseen.SAID), ""):
        return f"{UNRECORDED} what is written through .data ({place})"
    place = _branch(warned, (*KINDS, "Python integer", "Python index"))
    return f"the trace holds a number that it took from a tensor ({place})" if place else ""


def _asked(reason: str, warnings: Sequence[str]) -> str:
    """The reason with the rule for a size that torch.export asked for and no contract can say, where it may be that."""
    for warning in warnings:
        if (match := _HELD.fullmatch(warning)) and any(f"{name}=" in reason for name in re.findall(r"\w+", match[1])):
            return f"{reason} (perhaps because {warning})"
        if (match := _ASKED.match(warning)) and f"{match[1]}=" in reason:
            return f"{reason} (perhaps because {warning}; a contract says multiples alone: give such an example)"
    return reason


def _fixed_by(part: str, warnings: Iterable[str]) -> str:
    """`NAME is fixed at N` with the line where torch.export did that; anything else as it is."""
    if match := re.search(r"(\S+) is fixed at \d+", part):
        fixed = re.compile(rf"torch\.export fixed .*\b{re.escape(match[1])}\b.* at \d+ \((.+)\)")
        if found := next(filter(None, map(fixed.fullmatch, warnings)), None):
            return f"{part} by {found[1]}"
    return part


def _branch(warned: Sequence[tuple[str, str]], kinds: Sequence[str] = KINDS) -> str:
    """Where a tensor became a boolean, or else a number: in the model if anywhere, not in torch's own checks."""
    ours = [(place, message) for place, message in warned if not places.of_library(place)]
    tried = [(group, kind) for group in (ours, warned) for kind in kinds]
    return next((place for group, kind in tried for place, message in group if kind in message), "")
