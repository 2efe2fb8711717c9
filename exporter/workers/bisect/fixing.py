"""Finding what makes a failing variant pass: a few layers to keep in floating point, or a compiler's setting."""

from __future__ import annotations

import contextlib
import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from exporter.core import source_lines
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.evidence import golden as goldens
from exporter.evidence import make_golden
from exporter.evidence.golden import Golden
from exporter.model import capture, kept_layers, precision
from exporter.model.tensors import Run, Tensors
from exporter.targets import Options
from exporter.workers.bisect import Fix, search
from exporter.workers.bisect.variants import Builder

REMOVALS = 6  # layers of a set that are tried without, one at a time
ROUNDS = 30  # of timed calls
REASONS = 3  # failed builds that are reported


@dataclass
class Trials:
    """Builds the variant with other options, and remembers why a build failed.

    `golden` has every precision. `passes` says whether a run meets a golden of the variant's precision. `plain` is the
    model in float32; it is changed only for the time of a call.
    """

    builder: Builder
    golden: Golden
    passes: Callable[[Run, Golden], bool]
    plain: torch.nn.Module
    say: Callable[[str], None]
    failures: dict[str, str] = field(default_factory=dict)  # by reason, what was asked for

    @property
    def options(self) -> Options:
        """Return the options of the variant as it was exported."""
        return self.builder.options

    @property
    def in_half(self) -> bool:
        """Return whether the variant computes in a half precision."""
        return self.options.precision in precision.DTYPES

    @property
    def changes_eager(self) -> bool:
        """Return whether the variant's precision changes the module, and not what a target makes of it."""
        return self.in_half or self.options.precision in SMALL_WEIGHTS

    def run(self, options: Options, what: str) -> Run | None:
        """Build the variant with these options; return None if that fails, and remember why."""
        usual, program = self.builder.options, self.builder.program
        try:
            if self.changes_eager and options.keep_float != usual.keep_float:
                self.builder.program = self._program(options.keep_float)
            self.builder.options = options
            return self.builder.again()
        except Exception as error:  # an export can raise anything
            self.failures.setdefault(self.builder.plain(source_lines.summary(error)), what)
            return None
        finally:
            self.builder.options, self.builder.program = usual, program

    def is_enough(self, run: Run, options: Options) -> bool:
        """Return whether a build with these options passes every case."""
        return self.passes(run, self._golden(options.keep_float))

    def can_keep(self, layer: str) -> bool:
        """Return whether eager runs with a layer in float32."""
        try:
            with self._computing((*self.options.keep_float, layer)) as module:
                kept_layers.require_crossed(module, (layer,), self.builder.program.example)
        except Exception as error:  # a model can raise anything
            self.failures.setdefault(source_lines.summary(error), f"{layer} in float32")
            return False
        return True

    def _computing(self, kept: Sequence[str]) -> contextlib.AbstractContextManager[torch.nn.Module]:
        return precision.computing(self.plain, self.options.precision, self._outputs(), kept)

    def _outputs(self) -> tuple[str, ...]:
        return tuple(spec.dtype for spec in self.builder.program.function.outputs)

    def _program(self, kept: tuple[str, ...]) -> capture.Program:
        """Return what the variant is exported from, with other layers in float32."""
        program = self.builder.program

        @functools.cache
        def make() -> torch.nn.Module:
            made = precision.cast(copy.deepcopy(self.plain), self.options.precision, self._outputs(), kept)
            if self.in_half:
                kept_layers.require_crossed(made, kept, program.example)
            return made

        entries = {size: replace(entry, make_module=make) for size, entry in program.entries.items()}
        return replace(program, make_module=make, entries=entries)

    def _golden(self, kept: tuple[str, ...]) -> Golden:
        """Return the golden of the variant's precision; eager keeps the same layers in float32."""
        name, judged = self.options.precision, self.options.judged_as or self.options.precision
        if not self.changes_eager or kept == self.options.keep_float:
            return goldens.alone(self.golden.of(judged))
        tolerances = {name: self.golden.precisions[judged].tolerance}
        device = self.options.device
        cases = goldens.alone(self.golden)
        found, _ = make_golden.in_precisions(cases, self.plain, tolerances, self._outputs(), device, kept)
        return replace(cases, precisions=found).of(name)

    def notes(self) -> tuple[str, ...]:
        """Return why builds failed."""
        found = [f"a build with {what} failed: {reason}" for reason, what in self.failures.items()]
        more = len(found) - REASONS
        return tuple(found[:REASONS]) + ((f"builds failed for {more} more reasons",) if more > 0 else ())


def layers(trials: Trials, ranked: Sequence[str]) -> Fix | None:
    """Return a small set of layers, given worst first, with which the variant passes; None if there is none.

    The shortest beginning of the list that passes is found by bisection. Up to REMOVALS layers of it are tried without.
    If all layers do not suffice in a half precision, because values are too large between them, the modules around them
    are tried.
    """
    for names in _levels(ranked) if trials.in_half else [tuple(ranked)]:
        if found := _fewest(trials, names):
            kept, run = found
            return _fix(trials, replace(trials.options, keep_float=kept), run)
    return None


def _levels(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths, then those of the modules around them, and so on."""
    names = tuple(dict.fromkeys(filter(None, paths)))
    while True:
        yield names
        wider = tuple(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
        if wider == names:
            return
        names = wider


def _fewest(trials: Trials, names: tuple[str, ...]) -> tuple[tuple[str, ...], Run] | None:
    given = trials.options.keep_float
    known: dict[tuple[str, ...], bool | None] = {}
    last: list[Run] = []  # of the last set that passes, which is the smallest so far

    def is_enough(kept: tuple[str, ...]) -> bool | None:
        """Return whether the variant passes with these; None if it cannot be built, as if nothing is quantized."""
        if kept not in known:
            trials.say(f"keep {len(kept)} of {len(names)} layers in float")
            options = replace(trials.options, keep_float=(*given, *kept))
            run = trials.run(options, f"{_named(kept)} in float")
            known[kept] = None if run is None else trials.is_enough(run, options)
            if run is not None and known[kept]:
                last[:] = [run]
        return known[kept]

    if trials.in_half and names and is_enough(names) is None:
        names = tuple(filter(trials.can_keep, names))
    most = len(names)
    if names and is_enough(names) is None:  # the most that can be built, as int8 needs a layer to quantize
        least = 0
        while most - least > 1:
            middle = (most + least) // 2
            most, least = (middle, least) if is_enough(names[:middle]) is None else (most, middle)
        most = least
    if not most or not is_enough(names[:most]):
        return None
    _, end = search.first_bad(most, lambda at: is_enough(names[: at + 1]))
    kept = names[: end + 1]
    for layer in kept[:REMOVALS] if len(kept) > 1 else ():
        fewer = tuple(one for one in kept if one != layer)
        kept = fewer if fewer and is_enough(fewer) else kept
    return (*given, *kept), last[0]


def _named(kept: Sequence[str]) -> str:
    return ", ".join(kept) if len(kept) < 4 else f"{len(kept)} layers ({', '.join(kept[:2])}, …)"


def setting(trials: Trials, choices: Mapping[str, Options]) -> Fix | None:
    """Return the first of these choices, given by what to call them, with which the variant passes, or None."""
    for name, options in choices.items():
        trials.say(f"try {name}")
        run = trials.run(options, name)
        if run is not None and trials.is_enough(run, options):
            return _fix(trials, options, run)
    return None


def _fix(trials: Trials, options: Options, run: Run) -> Fix:
    before = trials.run(trials.options, "the variant's own settings")
    slower = _slower(before, run, trials.builder.program.example, options.device) if before else None
    kept = _share(trials.plain, options.keep_float)
    return Fix(options.keep_float, slower, options.inductor, options.fallback, options.graph_optimization, kept)


def _share(module: torch.nn.Module, layers: Sequence[str]) -> float:
    """Return the share of a module's weights that are in these layers."""
    sizes = {name: weights.numel() for name, weights in module.named_parameters()}
    kept = sum(size for name, size in sizes.items() if name.startswith(tuple(f"{layer}." for layer in layers)))
    return kept / (sum(sizes.values()) or 1)


def _slower(before: Run, after: Run, inputs: Tensors, device: str) -> float | None:
    """Return the ratio of the median times of both, called in turn; None if the first one fails."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for number in range(ROUNDS + 3):
            for run, seconds in zip((before, after), times, strict=True):
                started = time.perf_counter()
                try:
                    run(inputs)
                except Exception:  # whatever an artifact raises
                    return None
                if device != "cpu":
                    torch.cuda.synchronize(device)
                if number >= 3:
                    seconds.append(time.perf_counter() - started)
    return statistics.median(times[1]) / statistics.median(times[0])
