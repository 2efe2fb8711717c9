"""Calls of the original model: at the golden's sizes, with unusual values, and until both sides of each test were seen.

The model is loaded from source in which the tests are instrumented (`branches`); it computes the same.
"""

from __future__ import annotations

import builtins
import collections
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporter.core import probing, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError
from exporter.evidence import perturbations
from exporter.model import drawing
from exporter.model.tensors import Tensors
from exporter.workers.loading import LoadedModel
from exporter.workers.messages import Job
from exporter.workers.repair import branches, overlay
from exporter.workers.repair.child import loaded_with_contract
from exporter.workers.repair.records import Outcomes, Recorded, Site

LARGEST = 16  # sizes up to this one are tried, or twice the example's
SEEDS = 8  # drawn inputs at the example's sizes
DRAWN = 16  # inputs with other values, over all sizes
SEARCH = 400  # drawn inputs to try for each test of which only one side was seen
FIRST = 100  # seed of the first of them
NONFINITE = 8  # one in so many has NaN and infinity too
SEARCH_S = 30.0
AT_LEAST = 2  # calls, and sizes if there are several, on each side of a test
CALLS = 3  # in a row, for a model with state


@dataclass
class Case:
    """One call, with what the original returned; `raised` names its exception instead."""

    sizes: dict[str, int]
    inputs: Tensors
    outputs: Tensors = ()
    raised: str = ""
    written: Tensors = ()  # the tensors that it was given, after the call, if it changed them


@dataclass
class _Seen:
    """The outcomes of the tests: for each test and side, the calls and their sizes."""

    now: set[tuple[str, bool]] = field(default_factory=set)  # in the current call
    calls: collections.Counter[tuple[str, bool]] = field(default_factory=collections.Counter)
    sizes: dict[tuple[str, bool], set[str]] = field(default_factory=lambda: collections.defaultdict(set))

    def saw(self, key: str, value: Any) -> Any:
        """Note the outcome of a test. This is what the instrumented source calls."""
        self.now.add((key, bool(value)))
        return value

    def conclude(self, sizes: dict[str, int]) -> None:
        """Count what the current call has seen."""
        for outcome in self.now:
            self.calls[outcome] += 1
            self.sizes[outcome].add(probing.describe(sizes))

    def lacks(self, outcome: tuple[str, bool], sizes: int) -> bool:
        """Return whether there are too few calls with an outcome, or at too few sizes."""
        return self.calls[outcome] < AT_LEAST or len(self.sizes[outcome]) < min(AT_LEAST, sizes)


def run(module: torch.nn.Module, inputs: Tensors, device: str) -> tuple[Tensors, Tensors]:
    """Call a module with copies of the inputs. Return copies of the outputs, and its arguments if it changed them."""
    given = tuple(t.to(device, copy=True) for t in inputs)
    with torch.no_grad():
        outputs = tuple(t.detach().to("cpu", copy=True) for t in module(*given))
    after = tuple(t.cpu() for t in given)
    return outputs, () if all(map(_unchanged, after, inputs)) else after


def _unchanged(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def record(channel: socket.socket, job: Job, texts: Mapping[str, bytes], sites: Sequence[Site], file: Path) -> Recorded:
    """Call the original model, and save inputs and outputs. `texts` is its instrumented source."""
    seen = _Seen()
    setattr(builtins, branches.SAW, seen.saw)
    overlay.install(texts)
    loaded, found = loaded_with_contract(job)
    recorder = _Recorder(job, loaded, found, seen)
    recorder.usual()
    needed = [(site.key, side) for site in sites for side in _sides(site)]
    recorder.search(needed)
    torch.save([vars(case) for case in recorder.cases], file)
    missing = [
        _missing(site, side, seen)
        for site in sites
        for side in _sides(site)
        if seen.lacks((site.key, side), len(recorder.sizes))
    ]
    if all(case.raised for case in recorder.cases):
        missing.append("the original raises for all inputs")
    if recorder.unsteady():
        missing.append("the original returns other values when it is called again with the same inputs")
    sizes = tuple(dict.fromkeys(probing.describe(case.sizes) for case in recorder.cases))
    refused = sum(bool(case.raised) for case in recorder.cases)
    return Recorded(
        found, len(recorder.cases), refused, sizes, tuple(_outcomes(site, seen) for site in sites), tuple(missing)
    )


def _missing(site: Site, side: bool, seen: _Seen) -> str:
    """Say that one side of a test was not seen often enough."""
    said = f"no inputs were found for which `{' '.join(site.test.split())}` is {str(side).lower()}"
    return f"{said}, at more than one size" if seen.calls[site.key, side] else said


def _sides(site: Site) -> tuple[bool, ...]:
    """Return the sides of a test that have to be seen: both, unless one side only raises or the test has no effect."""
    return (True, False) if site.kind == "branch" else ()


def _outcomes(site: Site, seen: _Seen) -> Outcomes:
    sides = [(site.key, True), (site.key, False)]
    counts = [seen.calls[side] for side in sides]
    sizes = [len(seen.sizes[side]) for side in sides]
    return Outcomes(f"{site.file}:{site.line}", site.test, counts[0], counts[1], sizes[0], sizes[1])


class _Recorder:
    """Makes inputs, calls the model and keeps the calls."""

    def __init__(self, job: Job, loaded: LoadedModel, found: Contract, seen: _Seen) -> None:
        self.job, self.loaded, self.found, self.seen = job, loaded, found, seen
        self.cases: list[Case] = []
        plan = probing.probe_plan(loaded.base, loaded.symbols)
        cheap = [s for s, _ in plan if all(s[name] <= max(LARGEST, 2 * loaded.base[name]) for name in s)]
        self.sizes = [dict(pairs) for pairs in dict.fromkeys(tuple(sizes.items()) for sizes in cheap)]
        self.generator = torch.Generator().manual_seed(0)

    def usual(self) -> None:
        """Call the model at every size, with several seeds, and with unusual values."""
        base = self.loaded.base
        for sizes in self.sizes:
            self.call(sizes, self.loaded.inputs(sizes, 0))
        for seed in range(1, SEEDS):
            self.call(base, self.loaded.inputs(base, seed))
        example = self.loaded.inputs(base, 0)
        for changed in (*perturbations.changed(example).values(), *_nonfinite(example)):
            self.call(base, changed)
        for number in range(DRAWN):
            sizes = self.sizes[number % len(self.sizes)]
            self.call(sizes, drawing.drawn(self.loaded.inputs(sizes, SEEDS + number), self.generator))

    def unsteady(self) -> bool:
        """Return whether the model returns something else when it is called again, in the opposite order."""
        return any(not self._repeats(case) for case in reversed(self.cases))

    def _repeats(self, case: Case) -> bool:
        try:
            outputs, _ = run(self.loaded.module, case.inputs, self.job.options.device)
        except Exception as error:  # as in the first call
            return case.raised == type(error).__name__
        if case.raised or [one.shape for one in outputs] != [one.shape for one in case.outputs]:
            return False
        return all(torch.allclose(*pair, equal_nan=True) for pair in zip(outputs, case.outputs, strict=True))

    def search(self, needed: Sequence[tuple[str, bool]]) -> None:
        """Draw inputs until each of these outcomes was seen in enough calls; keep only the calls that add to it."""
        ends = time.monotonic() + SEARCH_S
        for attempt in range(SEARCH * (1 + len(needed))):
            lacking = [one for one in needed if self.seen.lacks(one, len(self.sizes))]
            if not lacking or time.monotonic() > ends:
                return
            sizes = self.sizes[attempt % len(self.sizes)]
            drawn = drawing.drawn(self.loaded.inputs(sizes, FIRST + attempt), self.generator)
            for inputs in _nonfinite(drawn) if attempt % NONFINITE == NONFINITE - 1 else [drawn]:
                self.call(sizes, inputs, set(lacking))

    def call(self, sizes: dict[str, int], inputs: Tensors, wanted: set[tuple[str, bool]] | None = None) -> None:
        """Call the model from its initial state. With `wanted`, forget the call unless it has one of the outcomes."""
        state = self.loaded.initial(self.found, sizes)
        made: list[Case] = []
        self.seen.now = set()
        for _ in range(CALLS if state else 1):
            case = Case(dict(sizes), inputs + state)
            try:
                case.outputs, case.written = run(self.loaded.module, case.inputs, self.job.options.device)
            except ExporterError:
                raise
            except Exception as error:  # a model may refuse unusual values in any way
                if source_lines.own(error):
                    raise
                case.raised = type(error).__name__
            made.append(case)
            if case.raised:
                break
            state = case.outputs[len(case.outputs) - len(state) :] if state else ()
        if made[-1].raised:  # it is not compared, so it shows no side of a test
            self.cases += made if wanted is None else []
        elif wanted is None or wanted & self.seen.now:
            self.seen.conclude(sizes)
            self.cases += made


def _nonfinite(example: Tensors) -> Iterator[Tensors]:
    """Yield the example with NaN or infinity in the first element of its floating tensors."""
    for value in (float("nan"), float("inf"), float("-inf")):
        changed = [t.clone() for t in example]
        for tensor in changed:
            if tensor.is_floating_point() and tensor.numel():
                tensor[(0,) * tensor.dim()] = value
        yield tuple(changed)
