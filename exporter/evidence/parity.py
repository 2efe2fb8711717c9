"""Parity verdicts on outputs. Pure functions over arrays; docs/formats.md states the rule, which C++ shares.

This file is long because the rule is in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporter.core.parity_records import VERDICTS, CaseParity, Parity, Tolerance, Verdict

Array = NDArray[Any]

FAR, GAP = 13, 7  # least binary exponent of an extreme element, and how far it is above the next smaller one's
NOISE = 0.3  # of a group's root mean square; a larger error is not eager's rounding, unless its values cancel out
CANCELS = 0.1  # of a group's root mean square; a smaller error of eager's leaves values that are significant
UNITS = 100.0  # by how much the error of cancelling values may differ from the rounding of the largest value
SAME = 0.05  # of a group's root mean square; values that differ by more from eager's are never the same
EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
REAL = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}  # dtypes of complex parts
SLACK, ALONE = 1.5, 3.0  # times the error of the least cosine: allowed errors, and that of a single value
CLEAR = 0.1  # fraction of a row's range; a maximum that leads by more must keep its position
FEW = 8  # elements of an output in one case, which may all be near zero by chance


@dataclass(frozen=True)
class Limits(Tolerance):
    """A tolerance for one output, with the output's typical size: the median of its root mean square over the cases.

    It only counts with `min_cosine`, for cases in which the output has few elements and is smaller. 0 if unknown.
    """

    typical: float = 0.0


@dataclass(frozen=True)
class OutputParity:
    """The parity of one output at one case."""

    output: str
    verdict: Verdict
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    rmse: float | None = None
    eager_rmse: float | None = None
    rmse_ratio: float | None = None
    cosine: float | None = None
    worst: tuple[int, ...] = ()
    cause: str = ""  # of a failure: a name in exporter.core.causes


def limits(tolerances: Sequence[Tolerance], references: Sequence[Sequence[Array]]) -> list[Limits]:
    """Return the limits of each output from its tolerance. `references` holds its float64 reference in each case.

    The references may have any shape. Those with more than FEW elements do not count and may be empty.
    """
    outputs = zip_longest(*references, fillvalue=np.zeros(0))
    return [Limits(**vars(own), typical=_typical(one)) for own, one in zip(tolerances, outputs, strict=True)]


@np.errstate(over="ignore")
def _typical(references: Sequence[Array]) -> float:
    """Return the median of the root mean squares of those with few elements, without NaN and infinity; 0 if none."""
    few = [one[np.isfinite(one)] for one in references if one.size <= FEW and np.issubdtype(one.dtype, np.inexact)]
    sizes = sorted(size for one in few if one.size and math.isfinite(size := _rms(one)))
    return sizes[len(sizes) // 2] if sizes else 0.0


def compare(
    name: str, got: Array, eager: Array, reference: Array, tolerance: Tolerance, dtypes: tuple[str, str]
) -> OutputParity:
    """Return the parity of one output, by the rule in docs/formats.md.

    `got`, `eager` and `reference` are the values of the artifact, of eager and of the float64 reference. `tolerance`
    may be the output's own `Limits`. `dtypes` are the torch dtypes of the first two; the arrays may be wider, because
    numpy has no bfloat16.
    """
    if got.shape != eager.shape:
        return OutputParity(name, "FAIL", f"shape {list(got.shape)}, expected {list(eager.shape)}")
    if dtypes[0] != dtypes[1]:
        return OutputParity(name, "FAIL", f"dtype {dtypes[0]}, expected {dtypes[1]}")
    if not np.issubdtype(eager.dtype, np.inexact):
        return _compare_integers(name, got, eager)
    for values, own in ((eager, True), (reference, True), (got, False)):
        if np.isnan(values).any():
            index = _index(np.isnan(values), got.shape)
            said = f"NaN at {list(index)}{': eager itself returns NaN' if own else ''}"
            return OutputParity(name, "FAIL", said, worst=index, cause="not-a-number" if own else "")
    infinite = np.isinf(got) | np.isinf(reference)
    differs = infinite & (got != reference)
    if differs.any():
        index = _index(differs, got.shape)
        reason = f"Inf at {list(index)}: {got[index]} where the reference is {reference[index]}"
        return OutputParity(name, "FAIL", reason, worst=index)
    epsilon = EPSILONS.get(REAL.get(dtypes[1], dtypes[1]), EPSILONS["float32"])
    return _compare_floats(name, got, eager, reference, tolerance, epsilon)


def compare_stored(
    found: OutputParity, arrays: tuple[Array, Array, Array, Array], tolerance: Tolerance, dtypes: tuple[str, str]
) -> OutputParity:
    """Return the parity of an artifact that stores its weights in fewer bytes.

    `found` is its parity with the original weights. It must also give what the stored weights give, in the tolerance of
    float32. `arrays` are its output, eager's, the reference, and the reference with the stored weights.
    """
    got, eager, reference, stored = arrays
    plain = replace(tolerance, min_cosine=None)
    same = compare(found.output, got, _moved(eager, reference, stored), stored, plain, dtypes)
    if same.verdict != "FAIL" or found.verdict == "FAIL":
        return found
    return replace(found, verdict="FAIL", reason=f"not what the stored weights give: {same.reason}", worst=same.worst)


def _moved(eager: Array, reference: Array, stored: Array) -> Array:
    """Return what eager would return with stored weights: their float64 outputs with eager's own rounding error."""
    if not np.issubdtype(eager.dtype, np.inexact):
        return eager
    finite = np.isfinite(eager) & np.isfinite(reference)
    error = np.subtract(eager, reference, out=np.zeros_like(reference), where=finite)
    made: Array = (stored + error).astype(eager.dtype)
    return made


def _difference(actual: float, reference: float) -> str:
    """Show both numbers with 6 digits, or with all of them if they look the same otherwise."""
    digits = 17 if f"{actual:.6g}" == f"{reference:.6g}" else 6
    return f"{actual:.{digits}g} where the reference is {reference:.{digits}g}"


def _compare_integers(name: str, got: Array, eager: Array) -> OutputParity:
    differs = got != eager
    if not differs.any():
        return OutputParity(name, "exact", max_abs=0.0)
    index = _index(differs, got.shape)
    distance = float(np.abs(got.astype(np.float64) - eager.astype(np.float64)).max())
    return OutputParity(
        name, "FAIL", f"{int(differs.sum())} of {got.size} values differ", max_abs=distance, worst=index
    )


@np.errstate(over="ignore", invalid="ignore")  # squares of the greatest numbers are infinite
def _compare_floats(
    name: str, got: Array, eager: Array, reference: Array, tolerance: Tolerance, epsilon: float
) -> OutputParity:
    finite = np.isfinite(got)
    if not finite.any():
        return OutputParity(name, "exact", max_abs=0.0)
    places = np.flatnonzero(finite)
    y, e, r = (a.reshape(-1)[places].astype(np.float64) for a in (got, eager, reference))
    distance, magnitude = np.abs(y - r), np.abs(r)
    allowed = tolerance.atol + tolerance.rtol * magnitude
    at = int(np.divide(distance, allowed, out=distance * 1e30, where=allowed > 0).argmax())
    unit = epsilon * float(magnitude.max())
    chosen = list(_groups(magnitude))
    groups = [_Group.of(y[one], e[one], r[one], allowed[one], unit) for one in chosen]
    significant = [(one, group.within) for one, group in zip(chosen, groups, strict=True) if not group.cancels]
    cosine = min([_cosine(y, r), *(_cosine(y[one], r[one]) for one, _ in significant)])
    parts = [slice(None), *(one for one, within in significant if not within)]
    coarse = _too_coarse([(y[one], r[one]) for one in parts], cosine, tolerance)
    excused = bool(coarse) and got.size <= FEW and len(groups) == 1 and _is_near_zero(y, r, tolerance)
    verdict: Verdict = "FAIL"
    lost = 0
    if bool((y == e).all()):
        verdict = "exact"
    elif all(group.within for group in groups):
        verdict = "rounding"
    elif all(group.within or group.is_drift(tolerance) for group in groups):
        verdict = "drift"
    elif tolerance.min_cosine is not None and (excused or not coarse):
        lost = _lost_firsts(got, reference) if _holds_scores(name, got) else 0
        verdict = "FAIL" if lost else "quantized"
    index = tuple(int(i) for i in np.unravel_index(int(places[at]), got.shape))
    reason = "" if verdict != "FAIL" else f"{_difference(y[at], r[at])} at {list(index)}"
    noisy = [one for one in groups if one.is_noisy and not one.within and not one.is_as_good(tolerance)]
    if noisy and verdict != "quantized":
        wrong = f"eager's error is {noisy[0].eager:.3g} where the output is {noisy[0].reference:.3g} (RMS)"
        same = f"{wrong}, and the artifact returns the same as eager"
        reason = f"{reason}; {wrong}" if verdict == "FAIL" else same
    reason = coarse if verdict == "FAIL" and coarse else reason
    reason = f"rows whose clear winner changed: {lost}" if lost else reason
    cause = ""
    if verdict == "FAIL":
        imprecise = lost or cosine < (tolerance.min_cosine or -1)
        rounding = noisy and not coarse and noisy[0].rmse <= tolerance.k * noisy[0].eager
        cause = "too-coarse" if imprecise else "rounding-decides" if rounding else ""
    return OutputParity(
        name,
        verdict,
        reason,
        max_abs=float(distance.max()),
        max_rel=float((distance / np.maximum(np.maximum(magnitude, tolerance.atol), 1e-300)).max()),
        rmse=groups[0].rmse,
        eager_rmse=groups[0].eager,
        rmse_ratio=groups[0].rmse / groups[0].eager if groups[0].eager else (1.0 if groups[0].rmse == 0 else None),
        cosine=None if verdict == "quantized" and excused else cosine,
        worst=index,
        cause=cause,
    )


@dataclass(frozen=True)
class _Group:
    """Measures of elements of one output: root mean squares of the errors and of the reference."""

    within: bool  # whether every element is within the tolerance
    rmse: float
    eager: float
    reference: float
    cancels: bool  # whether the values are what remains of larger ones, so that eager's error is as large as they
    apart: float  # root mean square of the differences from eager; infinite if eager is

    @classmethod
    def of(cls, got: Array, eager: Array, reference: Array, allowed: Array, unit: float) -> _Group:
        """Measure these elements; `unit` is the rounding of the output's largest element."""
        sound = np.isfinite(eager)
        own = _rms((eager - reference)[sound]) if sound.any() else 0.0
        within, size = bool((np.abs(got - reference) <= allowed).all()), _rms(reference)
        cancels = own > CANCELS * size and unit / UNITS <= own <= unit * UNITS
        apart = _rms(got - eager) if sound.all() else math.inf
        return cls(within, _rms(got - reference), own, size, cancels, apart)

    @property
    def is_noisy(self) -> bool:
        """Return whether eager's error is too large to be its rounding."""
        return self.eager > NOISE * self.reference and not self.cancels

    def is_drift(self, tolerance: Tolerance) -> bool:
        """Return whether the elements are as good as eager's, or repeat an error of eager's that is no rounding."""
        same = min(SAME, tolerance.k * tolerance.rtol) * self.reference
        return self.is_as_good(tolerance) or (self.is_noisy and self.apart <= same)

    def is_as_good(self, tolerance: Tolerance) -> bool:
        """Return whether the elements are as good as eager's; never if squares overflow."""
        own = tolerance.k * self.eager
        most = own if self.cancels else min(own, NOISE * self.reference)
        limit = most + (tolerance.atol + tolerance.rtol * self.reference) / 10
        return self.rmse <= limit and math.isfinite(limit)


def _groups(magnitude: Array) -> Iterator[Any]:
    """Yield which elements are the usual ones, and which are extreme, such as the -1e9 of masked scores.

    Beside extreme ones no error of another element would count. There is a group above each gap between the binary
    exponents; those of magnitudes up to 1 count as the same.
    """
    exponents = np.maximum(np.frexp(magnitude)[1], 1)
    taken = np.flatnonzero(np.append(np.bincount(exponents), 0)[1:]) + 1
    below, above = np.append(1, taken)[:-1], taken
    starts = above[(above >= FAR) & (above - below >= GAP)]
    if not starts.size:
        yield slice(None)
        return
    group = np.searchsorted(starts, exponents, side="right")
    yield from (group == number for number in np.unique(group))


def _holds_scores(name: str, values: Array) -> bool:
    """Return whether the last dimension holds scores: named logits, or the single 2-D output of a classifier."""
    return values.ndim > 1 and (name.rpartition(".")[2] == "logits" or (name == "output" and values.ndim == 2))


def _lost_firsts(got: Array, reference: Array) -> int:
    """Count the rows whose clear maximum in the reference is no longer the maximum."""
    rows, wanted = (a.reshape(-1, a.shape[-1]).astype(np.float64) for a in (got, reference))
    sound = np.isfinite(wanted).all(axis=-1)
    rows, wanted = rows[sound], wanted[sound]
    if wanted.shape[-1] < 2 or not wanted.size:
        return 0
    second, first = np.partition(wanted, -2, axis=-1)[:, -2:].T
    clear = first - second > CLEAR * (first - wanted.min(axis=-1))
    return int((clear & (rows.argmax(axis=-1) != wanted.argmax(axis=-1))).sum())


def _index(mask: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), shape))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _cosine(a: Array, b: Array) -> float:
    """Return the cosine of two vectors: 1 if both are zero, 0 if one is or if squares overflow."""
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if norms == 0:
        return 1.0 if not a.any() and not b.any() else 0.0
    cosine = float(a @ b) / norms
    return cosine if math.isfinite(cosine) else 0.0


def _too_coarse(parts: Sequence[tuple[Array, Array]], cosine: float, tolerance: Tolerance) -> str:
    """Return why elements do not pass by their cosine, or "".

    The cosine does not change if all elements are multiplied by a number, so their relative error is limited too.
    """
    least = tolerance.min_cosine
    if least is None:
        return ""
    if cosine < least:
        return f"cosine {cosine:.4f}, the minimum is {least:g}"
    for got, reference in parts:
        error, size = _rms(got - reference), _rms(reference)
        most = (SLACK if got.size > 1 else ALONE) * math.sqrt(2 * (1 - least)) * size
        limit = most + (tolerance.atol + tolerance.rtol * size) / 10
        if not error <= limit:
            return f"error {error:.3g} where the output is {size:.3g} (RMS), the maximum is {limit:.3g}"
    return ""


def _is_near_zero(got: Array, reference: Array, tolerance: Tolerance) -> bool:
    """Return whether elements are smaller than the output typically is, and their error is small for its typical size.

    A few elements may be near zero by chance, where neither their cosine nor a relative error says anything.
    """
    typical, least = tolerance.typical if isinstance(tolerance, Limits) else 0.0, tolerance.min_cosine
    if least is None or not _rms(reference) < typical:
        return False
    most = math.sqrt(2 * (1 - least)) * typical
    return _rms(got - reference) <= most + (tolerance.atol + tolerance.rtol * typical) / 10


def summarize(cases: Sequence[Mapping[str, Any]]) -> Parity:
    """Fold the `cases` of a session's `check` answer into one parity; the worst verdict wins."""
    parts = _parts(cases)
    errors = [case for case in cases if case["error"]]
    verdict: Verdict = max((o["verdict"] for _, o in parts), key=VERDICTS.index, default="FAIL")
    reason, worst = "", ""
    if parts:
        case, output = max(parts, key=_badness)
        worst = f"{output['output']}{list(output['worst'])} at {case['case']} seed {case['seed']}"
        case, output = max((part for part in parts if part[1]["reason"]), key=_badness, default=(case, output))
        reason = f"{output['output']} at {case['case']}: {output['reason']}" if output["reason"] else ""
    if errors:
        verdict, reason = "FAIL", f"{errors[0]['case']}: {errors[0]['error']}"
        worst = f"{errors[0]['case']} seed {errors[0]['seed']}"
    return Parity(
        verdict,
        max_abs=_fold(max, parts, "max_abs"),
        max_rel=_fold(max, parts, "max_rel"),
        rmse_ratio=_fold(max, parts, "rmse_ratio"),
        cosine=_fold(min, parts, "cosine"),
        worst=worst,
        reason=reason,
        cases=len({(case["case"], case["seed"]) for case, _ in parts}) + len(errors),
        parts=tuple(_part(case, output) for case in cases for output in case["outputs"] or [{}]),
    )


def worst(cases: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the case behind the verdict: the first that raised, else the one with the worst output."""
    found = next((case for case in cases if case["error"]), None) or max(_parts(cases), key=_badness)[0]
    return next(index for index, case in enumerate(cases) if case is found)


def _parts(cases: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return [(case, output) for case in cases for output in case["outputs"]]


def _badness(part: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[int, float]:
    return VERDICTS.index(part[1]["verdict"]), part[1]["max_abs"] or 0.0


def _part(case: Mapping[str, Any], output: Mapping[str, Any]) -> CaseParity:
    numbers = {key: output[key] for key in ("max_abs", "rmse_ratio", "cosine") if key in output}
    return CaseParity(case["case"], case["seed"], output.get("output", ""), output.get("verdict", "FAIL"), **numbers)


def _fold(pick: Any, parts: Iterable[tuple[Any, Mapping[str, Any]]], key: str) -> float | None:
    values = [float(o[key]) for _, o in parts if o[key] is not None]
    return float(pick(values)) if values else None
