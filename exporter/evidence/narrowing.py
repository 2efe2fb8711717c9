"""Finds which of torch.export's conditions on sizes are real, by running the graph at sizes that violate them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from exporter.core import memory
from exporter.core.contract import Narrowing, narrow
from exporter.core.contract_records import Contract
from exporter.core.parity_records import SizeLimit
from exporter.core.size_range import Range, Sizes
from exporter.evidence import eager
from exporter.model import guards, ranges
from exporter.model.capture import Captured
from exporter.model.state import carrying
from exporter.model.tensors import Tensors

TRIED = 4  # sizes to try at most per condition
FAR = 4  # largest size to try, in multiples of the example's; larger ones cost too much

MakeInputs = Callable[[Sizes], Tensors]


def find(
    captured: Captured, module: torch.nn.Module, inputs: MakeInputs, base: Sizes, contract: Contract, device: str
) -> list[Narrowing]:
    """Return how each symbol of the contract must be narrowed.

    A step always applies to compiled code; it applies to the graph only if the graph is wrong at other sizes. A smaller
    range applies only if the graph is wrong outside of it; many graphs are right there. The saved program is run to
    find out which sizes it refuses.
    """
    holds = guards.conditions(captured.program, contract)
    unconditional = not guards.violations(holds, base, contract.symbols)
    if unconditional and not captured.relaxed and all(one.multiple_of == 1 for one in contract.symbols.values()):
        return []  # torch.export accepted everything that the contract promises
    trial = _Trial(module, inputs, base, device)
    graph = captured.program.module(check_guards=False)
    if not trial.right(graph, base):
        return []  # either wrong everywhere, which the golden will show, or not repeatable
    found = [*_steps(captured, graph, trial, contract), *_bounds(captured, graph, trial, contract)]
    whole = _graph(contract, found)
    alone = list(_conditions(captured, graph, trial, whole, holds))
    joint, places = [], [""]
    if clash := _clash(graph, trial, _graph(whole, alone), holds):
        joint = _jointly(trial, _graph(whole, alone), holds, clash)
        if not joint and (joint := _apart(trial, whole, holds, {*clash, *(one.symbol for one in alone)})):
            places = [one.place for one in alone]
            alone = [one for one in alone if one.symbol not in {other.symbol for other in joint}]
    place = next(filter(None, (*(_place(captured, one.symbol, contract) for one in joint), *places)), "")
    joint = [replace(one, place=place) for one in joint]
    found = [one for one in (*found, *alone) if not any(_replaces(other, one) for other in joint)] + joint
    return [*found, *_guards(captured, trial, _graph(contract, found))]


def _graph(contract: Contract, found: Iterable[Narrowing]) -> Contract:
    """Return the contract in whose ranges the graph is right."""
    return narrow(contract, (one for one in found if one.of == "graph"))


@dataclass(frozen=True)
class _Trial:
    """Compares a graph with eager at the same inputs."""

    module: torch.nn.Module
    inputs: MakeInputs
    base: Sizes
    device: str

    def right(self, graph: torch.nn.Module, sizes: Sizes) -> bool:
        """Return whether the graph runs and agrees with eager up to rounding.

        Also return True if eager itself fails, because then nothing is known against the graph.
        """
        data = self.inputs(sizes)
        try:
            wanted = eager.run(self.module, data, self.device)
        except Exception:  # at sizes that are unsupported or too large, a model can raise anything
            return True
        try:
            outputs = eager.run(graph, data, self.device)
        except Exception as error:  # at unsupported sizes, a graph can raise anything
            if memory.ran_out(error):
                raise
            return False
        return all(map(carrying.agree, outputs, wanted))

    def wrong(self, graph: torch.nn.Module, name: str, sizes: list[int]) -> list[int]:
        """Return the sizes of a symbol at which the graph is wrong."""
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
        tried = _outside(size, promised, bounds)
        if bounds.allows(size) and (wrong := trial.wrong(graph, name, tried)):
            low = bounds.min if min(wrong) < bounds.min else promised.min
            right_above = max(wrong) < bounds.max and promised.sizes[-1] in tried
            high = promised.max if right_above else bounds.max
            yield Narrowing(name, promised.within(low, high), captured.place(name, wrong[0], 1))


def _conditions(
    captured: Captured, graph: torch.nn.Module, trial: _Trial, contract: Contract, holds: guards.Holds
) -> Iterator[Narrowing]:
    """Yield narrower ranges for symbols with sizes at which the graph does not hold and is wrong."""
    for name, bounds in contract.symbols.items():
        violated = itertools.islice(guards.broken(holds, name, trial.base, bounds), TRIED)
        if holds(trial.base) and (wrong := trial.wrong(graph, name, list(violated))):
            found = guards.around(holds, name, trial.base, bounds)
            if len(found.sizes) > 1:  # otherwise the size is fixed, which the golden shows
                yield Narrowing(name, found, captured.place(name, wrong[0], 1))


def _clash(graph: torch.nn.Module, trial: _Trial, contract: Contract, holds: guards.Holds) -> list[str]:
    """Return the symbols that depend on each other, such as `width <= height`, if the graph is wrong at sizes that do
    not hold together.
    """
    found = guards.clashes(holds, trial.base, contract.symbols) if holds(trial.base) else []
    wrong = [sizes for sizes in found if not trial.right(graph, sizes)]
    return [name for name in contract.symbols if any(one[name] != trial.base[name] for one in wrong)]


def _jointly(trial: _Trial, contract: Contract, holds: guards.Holds, names: list[str]) -> list[Narrowing]:
    """Return narrower ranges for sizes that depend on each other."""
    involved = {name: contract.symbols[name] for name in names}
    return _narrower(contract, guards.jointly(holds, trial.base, involved))


def _apart(trial: _Trial, contract: Contract, holds: guards.Holds, names: set[str]) -> list[Narrowing]:
    """Return narrower ranges that keep sizes apart, as `height != width` needs; also of sizes that break one alone."""
    involved = {name: bounds for name, bounds in contract.symbols.items() if name in names}
    return _narrower(contract, guards.kept_apart(holds, trial.base, involved))


def _narrower(contract: Contract, ranges: Mapping[str, Range]) -> list[Narrowing]:
    return [Narrowing(name, ranges[name]) for name, r in contract.symbols.items() if ranges.get(name, r) != r]


def _place(captured: Captured, name: str, contract: Contract) -> str:
    """Return the line of a condition that an end of this symbol's range breaks; "" if there is none."""
    sizes = contract.symbols[name].sizes
    return captured.place(name, sizes[0], 1) or captured.place(name, sizes[-1], 1)


def _replaces(joint: Narrowing, other: Narrowing) -> bool:
    same = (joint.symbol, joint.of, joint.bounds.multiple_of) == (other.symbol, other.of, other.bounds.multiple_of)
    return same and other.bounds.covers(joint.bounds)


def _guards(captured: Captured, trial: _Trial, contract: Contract) -> Iterator[Narrowing]:
    guarded = guards.ranges_only(captured.program)
    for name, promised in contract.symbols.items():

        def takes(size: int, name: str = name) -> bool:
            return trial.right(guarded, {**trial.base, name: size})

        size = trial.base[name]
        refused = ranges.refused(takes, size, promised) if takes(size) else None
        if refused is not None and (found := ranges.taken(takes, size, promised)) and len(found.sizes) > 1:
            yield Narrowing(name, found, captured.place(name, refused, 1), "guards")


def violations(
    captured: Captured, module: torch.nn.Module, inputs: MakeInputs, contract: Contract, base: Sizes, device: str
) -> list[Sizes]:
    """Return sizes for the golden at which the model runs, but the program does not hold, or may not."""
    found = guards.violations(guards.conditions(captured.program, contract), base, contract.symbols)
    found += [sizes for sizes in guards.joint_extremes(contract, base) if sizes not in found]
    return [sizes for sizes in found if _runs(module, inputs(sizes), device)]


def _runs(module: torch.nn.Module, data: Tensors, device: str) -> bool:
    try:
        eager.run(module, data, device)
    except Exception:  # at sizes that are unsupported or too large, a model can raise anything
        return False
    return True


def limits(captured: Captured, narrowings: list[Narrowing], base: Sizes) -> Iterator[SizeLimit]:
    """Yield what torch.export fixed, and its conditions that did not narrow the contract."""
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
    """Return sizes near the example's that are not multiples of the step."""
    unit = promised.multiple_of
    wanted = (base + unit, base - unit, base + step // 2, base + step - unit, base + step + unit)
    return [size for size in dict.fromkeys(wanted) if promised.allows(size) and size % step][:TRIED]


def _outside(base: int, promised: Range, bounds: Range) -> list[int]:
    """Return sizes of the promised range outside the bounds, the nearest first."""
    below, above = bounds.min - promised.multiple_of, bounds.max + promised.multiple_of
    wanted = dict.fromkeys((below, above, promised.sizes[0], min(promised.sizes[-1], FAR * base)))
    return [size for size in wanted if promised.allows(size) and not bounds.allows(size)]
