"""The parent's side: try proposals one after another, follow those that move the obstacle, and have the rest proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exporter.core import source_lines
from exporter.core.errors import ExporterError
from exporter.core.size_range import Range
from exporter.workers.children import EXPORTING, SIDE_BY_SIDE, WITHOUT_GPU, Zygote
from exporter.workers.messages import Job
from exporter.workers.repair import branches, obstacles
from exporter.workers.repair.records import (
    Attempt,
    Compared,
    Patch,
    Proof,
    Recorded,
    Repair,
    Step,
    Tried,
)
from exporter.workers.repair.rules import order
from exporter.workers.repair.rules._rule import Failure, Proposal
from exporter.workers.repair.source import Source, unified
from exporter.workers.repair.writing import Found

CHILD = "exporter.workers.repair"
ROUNDS = 10  # changes in one patch
TRIALS = 60  # exports in one search


@dataclass(frozen=True)
class _Solution:
    """Changed texts and options that were proven."""

    texts: dict[str, bytes]
    steps: tuple[Step, ...]
    options: tuple[str, ...]
    proof: Proof | None


def run(job: Job, log: Path, begun: Callable[[str], None], timeout: float) -> Found:
    """Search for a repair. `begun` is called with each step; `timeout` is in seconds and limits each trial.

    Raises the same errors as `exporter export` if the model does not load or run.
    """
    on_cpu = job.options.device == "cpu"
    with Zygote(SIDE_BY_SIDE | (WITHOUT_GPU if on_cpu else {}), EXPORTING if on_cpu else ()) as zygote:
        search = _Search(zygote, job, log, begun, timeout)
        begun("export the model as it is")
        first = search.attempt(job, {})
        if first.accepted:
            return Found(search.report("accepted", first), {})
        solution = search.solve(first, {}, ())
        if solution is None:
            return Found(search.report("refused", first), {})
        files = {Path(file): text for file, text in solution.texts.items()}
        return Found(
            search.report("repaired", first, solution),
            files,
            {path: search.originals[str(path)].data for path in files},
        )


@dataclass
class _Search:
    """The state of one search."""

    zygote: Zygote
    job: Job
    log: Path
    begun: Callable[[str], None]
    timeout: float
    originals: dict[str, Source] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    seen: set[tuple[tuple[str, bytes], ...]] = field(default_factory=set)

    def attempt(self, job: Job, texts: dict[str, bytes]) -> Attempt:
        """Load and export the model in a child, with these texts in place of its files."""
        found: Attempt = self._child("child:attempt", job=job, texts=texts)
        return found

    def _child(self, function: str, **arguments: Any) -> Any:
        return self.zygote.run("repair", f"{CHILD}.{function}", arguments, self.log, self.timeout)

    def solve(self, found: Attempt, texts: dict[str, bytes], steps: tuple[Step, ...]) -> _Solution | None:
        """Return a proven repair that starts from these texts, or None."""
        if found.obstacle is None:
            return self._concluded(found, texts, steps)
        if len(steps) >= ROUNDS:
            return None
        sources = self._sources(found, texts)
        for proposal in order.propose(Failure(found.obstacle, sources)):
            changed = texts | {proposal.file: proposal.data}
            key = tuple(sorted(changed.items()))
            if key in self.seen or len(self.seen) >= TRIALS:
                continue
            self.seen.add(key)
            self.begun(f"try at {source_lines.shown(*proposal.place.rsplit(':', 1))}: {proposal.text}")
            again = self._moved(found, sources, proposal, changed)
            if again is not None:
                step = Step(proposal.text, proposal.place, proposal.note)
                solution = self.solve(again, changed, (*steps, step))
                if solution is not None:
                    return solution
        return None

    def _moved(
        self, found: Attempt, sources: dict[str, Source], proposal: Proposal, changed: dict[str, bytes]
    ) -> Attempt | None:
        """Try a proposal. Return what was found then, or None if the model no longer runs or the obstacle remains."""
        try:
            again = self.attempt(self.job, changed)
        except ExporterError as error:
            self._reject(proposal, str(error))
            return None
        if again.contract is None and again.obstacle is not None:
            self._reject(proposal, f"the model then fails: {again.obstacle.text}")
            return None
        after = self._sources(again, changed)
        if again.obstacle and obstacles.same(found.obstacle, sources, again.obstacle, after):
            self._reject(proposal, "torch.export gives the same error")
            return None
        if again.obstacle:
            self._reject(proposal, f"torch.export then fails: {again.obstacle.text}", final=False)
        return again

    def _reject(self, proposal: Proposal, reason: str, final: bool = True) -> None:
        where = proposal.place
        self.tried.append(Tried(proposal.text, where, reason if final else f"a first step: {reason}"))

    def _sources(self, found: Attempt, texts: dict[str, bytes]) -> dict[str, Source]:
        """Return the files that may be changed: those of the model, except installed packages."""
        names = dict.fromkeys(frame.file for frame in (found.obstacle.frames if found.obstacle else ()))
        sources = {}
        for file in names | dict.fromkeys(found.files):
            if obstacles.is_installed(file) or not Path(file).is_file():
                continue
            try:
                if file not in self.originals:
                    self.originals[file] = Source.read(file)
                sources[file] = Source(file, texts[file]) if file in texts else self.originals[file]
            except (SyntaxError, ValueError):
                continue
        return sources

    def _concluded(self, found: Attempt, texts: dict[str, bytes], steps: tuple[Step, ...]) -> _Solution | None:
        """Choose options for the sizes that are still narrowed or fixed, and prove the result."""
        job = self.job
        options: tuple[str, ...] = ()
        if not found.accepted:
            job, options = self._with_options(found)
            again = self.attempt(job, texts) if options else found
            if not again.accepted:
                said = "; ".join(map(str, (*found.limits, *(one.symbol for one in found.narrowings))))
                self.tried.append(Tried(" ".join(options) or "no option", "", f"torch.export still narrows: {said}"))
                return None
        self.begun("compare with the original model")
        proof = self._prove(job, texts, steps)
        return _Solution(texts, steps, options, proof) if proof else None

    def _with_options(self, found: Attempt) -> tuple[Job, tuple[str, ...]]:
        """Return the job with sizes that torch.export accepts, and the options that say so."""
        assert found.contract is not None
        symbols, options = found.contract.symbols, []
        ranges: dict[str, Range] = {}
        fixed = {name for limit in found.limits for name in limit.symbols}
        for one in found.narrowings:
            if one.symbol in symbols and one.symbol not in fixed:
                bounds = symbols[one.symbol].within(one.bounds.min, one.bounds.max, one.bounds.multiple_of)
                ranges[one.symbol] = bounds
                step = f"..{bounds.multiple_of}" if bounds.multiple_of > 1 else ""
                options.append(f"--size {one.symbol}={bounds.min}..{bounds.max}{step}")
        dynamic = self.job.dynamic
        if fixed:
            dynamic = ",".join(name for name in symbols if name not in fixed) or "none"
            options.append(f"--dynamic {dynamic}")
        return replace(self.job, ranges=self.job.ranges | ranges, dynamic=dynamic), tuple(options)

    def _prove(self, job: Job, texts: dict[str, bytes], steps: tuple[Step, ...]) -> Proof | None:
        """Compare the patched model with the original; None, with the reason among the trials, if it is not proven."""
        try:
            return self._proven(job, texts)
        except (ExporterError, _NotProven) as problem:
            last = steps[-1] if steps else Step("the options", "")
            self.tried.append(Tried(last.text, last.place, f"not proven: {problem}"))
            return None

    def _proven(self, job: Job, texts: dict[str, bytes]) -> Proof:
        sites = [
            site for file, text in texts.items() for site in branches.changed(self.originals[file], Source(file, text))
        ]
        originals = {
            file: branches.instrumented(self.originals[file], [site for site in sites if site.file == file])
            for file in texts
        }
        cases = job.work / "cases.pt"
        recorded: Recorded = self._child("recording:record", job=job, texts=originals, sites=sites, file=cases)
        if recorded.missing:
            raise _NotProven("; ".join(recorded.missing))
        compared: Compared = self._child(
            "comparing:compare", job=job, texts=texts, expected=recorded.contract, file=cases
        )
        if compared.problem:
            raise _NotProven(compared.problem)
        return Proof(
            recorded.cases,
            recorded.sizes,
            compared.max_abs,
            recorded.refused,
            compared.unchecked,
            recorded.outcomes,
            compared.inputs_kept,
        )

    def report(self, verdict: Any, first: Attempt, solution: _Solution | None = None) -> Repair:
        """Return the report."""
        obstacle = first.obstacle or obstacles.of_limits(first)
        if verdict == "refused" and obstacle.frames and obstacles.is_installed(obstacle.frames[-1].file):
            self.tried.append(Tried("change this line", obstacle.place, "installed packages are not changed"))
        patches = tuple(
            Patch(file, unified(source_lines.near(file), self.originals[file].data, text))
            for file, text in (solution.texts.items() if solution else ())
        )
        return Repair(
            self.job.model,
            self.job.options.device,
            first.sizes,
            verdict,
            obstacle.text if verdict != "accepted" else "",
            obstacle.place,
            obstacle.remedy if verdict == "refused" else "",
            solution.steps if solution else (),
            solution.options if solution else (),
            patches,
            tuple(dict.fromkeys(self.tried)) if verdict == "refused" else (),
            solution.proof if solution else None,
        )


class _NotProven(Exception):
    """A repair that exports, but is not shown to compute the same."""
