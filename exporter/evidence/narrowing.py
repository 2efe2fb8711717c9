"""Which of torch.export's conditions on sizes are promises: told by running the graph where they do not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from exporter.core import memory
from exporter.core.contract import Narrowing, narrow
from exporter.core.contract_records import Contract
from exporter.core.parity_records import SizeLimit
from exporter.core.size_range import Range, Sizes
from exporter.evidence import eager
from exporter.model import ranges
from exporter.model.capture import Captured
from exporter.model.state import carrying
from exporter.model.tensors import Tensors

TRIED = 4  # sizes outside a range that are tried
FAR = 4  # times the example's size: beyond, a try may cost more than it tells

MakeInputs = Callable[[Sizes], Tensors]


def find(
    captured: Captured, module: torch.nn.Module, inputs: MakeInputs, base: Sizes, contract: Contract, device: str
) -> list[Narrowing]:
    """What is left of each symbol.

    A step holds for the code of a compiler, and for the graph too where that is wrong at other sizes. A smaller range
    holds where the graph is wrong outside: of many it would be right there. The program's own guards are tried.
    """
    if not captured.relaxed and all(bounds.multiple_of == 1 for bounds in contract.symbols.values()):
        return []  # all that was promised could be asked for
    trial = _Trial(module, inputs, base, device)
    graph = captured.program.module(check_guards=False)
    if not trial.right(graph, base):
        return []  # it is wrong everywhere, as the golden will tell, or gives other values at each call
    found = [*_steps(captured, graph, trial, contract), *_bounds(captured, graph, trial, contract)]
    return [*found, *_guards(captured, trial, narrow(contract, (one for one in found if one.of == "graph")))]


@dataclass(frozen=True)
class _Trial:
    """Runs a graph and eager at the same inputs."""

    module: torch.nn.Module
    inputs: MakeInputs
    base: Sizes
    device: str

    def right(self, graph: torch.nn.Module, sizes: Sizes) -> bool:
        """Whether the graph gives what eager gives, but for rounding; and whether it runs at all.

        True where eager itself does not run: nothing speaks against the graph then.
        """
        data = self.inputs(sizes)
        try:
            wanted = eager.run(self.module, data, self.device)
        except Exception:  # whatever a model raises at sizes that it does not take, or that are too large here
            return True
        try:
            outputs = eager.run(graph, data, self.device)
        except Exception as error:  # whatever a graph raises at sizes that it was not made for
            if memory.ran_out(error):
                raise
            return False
        return all(map(carrying.agree, outputs, wanted))

    def wrong(self, graph: torch.nn.Module, name: str, sizes: list[int]) -> list[int]:
        """The sizes of a symbol at which the graph is not right."""
        return [size for size in sizes if not self.right(graph, {**self.base, name: size})]


def _steps(captured: Captured, graph: torch.nn.Module, trial: _Trial, contract: Contract) -> Iterator[Narrowing]:
    for name, rule in captured.rules.items():
        promised, size = contract.symbols[name], trial.base[name]
        if rule.offset or size % rule.multiple:
            continue
        others = _others(size, promised, rule.multiple)
        wrong = trial.wrong(graph, name, others)
        place = captured.place(name, (wrong or others or [size + 1])[0], rule.multiple)
        bounds = promised.within(promised.min, promised.max, rule.multiple)
        yield Narrowing(name, bounds, place, "graph" if wrong else "code")


def _bounds(captured: Captured, graph: torch.nn.Module, trial: _Trial, contract: Contract) -> Iterator[Narrowing]:
    for name, bounds in captured.bounds.items():
        promised, size = contract.symbols[name], trial.base[name]
        if bounds.allows(size) and (wrong := trial.wrong(graph, name, _outside(size, promised, bounds))):
            yield Narrowing(name, promised.within(bounds.min, bounds.max), captured.place(name, wrong[0], 1))


def _guards(captured: Captured, trial: _Trial, contract: Contract) -> Iterator[Narrowing]:
    guarded = captured.program.module()
    for name, promised in contract.symbols.items():

        def takes(size: int, name: str = name) -> bool:
            return trial.right(guarded, {**trial.base, name: size})

        size = trial.base[name]
        if takes(size) and (refused := ranges.refused(takes, size, promised)) is not None:
            found = ranges.taken(takes, size, promised)
            if found is not None and len(found.sizes) > 1:
                yield Narrowing(name, found, captured.place(name, refused, 1), "guards")


def limits(captured: Captured, narrowings: list[Narrowing], base: Sizes) -> Iterator[SizeLimit]:
    """What torch.export fixed, and what it asked for that nothing was narrowed by."""
    yield from captured.fixed
    for name, rule in captured.rules.items():
        if rule.offset or base[name] % rule.multiple:
            place = captured.place(name, base[name] + 1, rule.multiple)
            yield SizeLimit(name, "steps", str(rule), (name,), place)
    said = {one.symbol for one in narrowings}
    for name, bounds in captured.bounds.items():
        if name not in said:
            yield SizeLimit(name, "range", str(bounds), (name,))


def _others(base: int, promised: Range, step: int) -> list[int]:
    """Sizes near the example's that are no multiples of the step."""
    unit = promised.multiple_of
    wanted = (base + unit, base - unit, base + step // 2, base + step - unit, base + step + unit)
    return [size for size in dict.fromkeys(wanted) if promised.allows(size) and size % step][:TRIED]


def _outside(base: int, promised: Range, bounds: Range) -> list[int]:
    """Sizes of the promised range that lie outside the bounds, those next to them first."""
    below, above = bounds.min - promised.multiple_of, bounds.max + promised.multiple_of
    wanted = dict.fromkeys((below, above, promised.sizes[0], min(promised.sizes[-1], FAR * base)))
    return [size for size in wanted if promised.allows(size) and not bounds.allows(size)]
