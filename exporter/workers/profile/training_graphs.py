"""The steps of a compiled training step: kernels of the forward and the backward graph, and what runs between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from exporter.core import source_lines
from exporter.core.profile_records import Origin, Step, Steps, aligned
from exporter.model import origins, steps
from exporter.model.tensors import Tensors
from exporter.targets import _steps_inductor
from exporter.workers.profile.training_step import Expected, TrainingStep

BACKWARD = "exporter backward"
CALLED = "exporter called "  # in the loss, outside compiled code; its number follows
NODE = "autograd::engine::evaluate_function: "
COMPILED_NODE = "CompiledFunctionBackward"
COMPILED = "## Call CompiledFxGraph"


@dataclass
class Watched:
    """The kernels of the graphs that torch.compile makes for a step, in the order in which they are compiled.

    AOTAutograd gives each node of the backward graph the line and the module of the operator that it differentiates.
    """

    modules: frozenset[str]
    names: list[str] = field(default_factory=list)
    origins: list[tuple[Origin, ...]] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Compile with kernels that report to the profiler, and note which nodes each computes."""
        with _compiling(), _steps_inductor.noting(self._add):
            yield

    def _add(self, information: dict[str, Any]) -> None:
        from torch._inductor.virtualized import V

        module: Any = V.graph.module
        nodes = {node.name: node for node in module.graph.nodes}
        taken: set[str] = set()
        for kernel in sorted(information, key=lambda name: int(name.rpartition(":")[2])):
            computed = [name for name in information[kernel]["post_grad_nodes"] if name in nodes]
            own = [name for name in computed if name not in taken] or computed
            taken.update(own)
            self.names.append(kernel.rpartition(":")[0])
            self.origins.append(tuple(filter(lambda one: one.place, (self._origin(nodes[name]) for name in own))))

    def _origin(self, node: torch.fx.Node) -> Origin:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        module = next((found for one in reversed(list(stack.values())) if (found := self._known(str(one[0])))), "")
        values = pytree.tree_leaves([one.meta.get("val") for one in (node, *node.all_input_nodes)])
        moved = sum(one.numel() * one.element_size() for one in values if isinstance(one, torch.Tensor))
        return Origin(module, source_lines.place_of_node(str(node.meta.get("stack_trace") or "")), bytes=float(moved))

    def _known(self, path: str) -> str:
        """Return a path in the model; "" for the model itself and for modules of the loss."""
        found = origins.within(path)
        return found if found in self.modules else ""

    def explain(self, names: Sequence[str]) -> list[tuple[Origin, ...]]:
        """Return the origins of the profiler's events, by their names."""
        at = aligned(list(map(_steps_inductor.plain, self.names)), list(map(_steps_inductor.plain, names)))
        return [() if index is None else self.origins[index] for index in at]


class Calls(TorchFunctionMode):
    """Notes the lines that call torch, and marks each call for the profiler."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: list[Origin] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.origins.append(Origin("", source_lines.here()))
        with torch.profiler.record_function(f"{CALLED}{len(self.origins) - 1}"):
            return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class _Ran:
    """An event of the profiler: an operator, a kernel, or a node of autograd that is not compiled."""

    event: Any
    called: int | None = None
    backward: bool = False
    compiled: bool = False

    @property
    def numbers(self) -> set[int]:
        """The sequence numbers in it, by which autograd's nodes name the operators that they differentiate."""
        return {one.sequence_nr for one in steps.everything(self.event) if one.sequence_nr >= 0}


@dataclass
class Recorded:
    """Records calls of a compiled step."""

    step: TrainingStep
    watched: Watched
    device: str

    def record(self, inputs: Tensors, runs: int) -> Steps:
        """Return the typical call of `runs` calls."""
        return steps.typical([self._call(inputs) for _ in range(runs)])

    def _call(self, inputs: Tensors) -> Steps:
        calls = Calls()
        self.step.watching = lambda: calls
        self.step.reset()

        def run(given: Tensors) -> Tensors:
            loss = self.step.loss_of(given)
            with torch.profiler.record_function(BACKWARD):
                loss.backward()
            return (loss,)

        try:
            # On one thread, so that the events of the backward pass are inside those of the call.
            with torch.autograd.set_multithreading_enabled(False):
                (call,) = steps.calls_of(run, inputs, self.device, 1)
        finally:
            self.step.watching = contextlib.nullcontext
        ran = list(_ran(call, _Ran(call)))
        made = [
            _marked(steps.step_of(call, one.event, self.device), one, own)
            for one, own in zip(ran, self._origins(ran, calls.origins), strict=True)
        ]
        return Steps(tuple(made), call.time_range.elapsed_us())

    def _origins(self, ran: Sequence[_Ran], called: Sequence[Origin]) -> list[tuple[Origin, ...]]:
        kernels = [one for one in ran if one.called is None and not one.event.name.startswith(NODE)]
        explained = dict(zip(map(id, kernels), self.watched.explain([one.event.name for one in kernels]), strict=True))
        by_number: dict[int, tuple[Origin, ...]] = {}
        last: tuple[Origin, ...] = ()
        found = []
        for one in ran:
            own: tuple[Origin, ...] = explained.get(id(one), ())
            if one.called is not None:
                own = (called[one.called],)
            elif one.event.name.startswith(NODE):  # gradients are accumulated right after the node that made them
                own = by_number.get(one.event.sequence_nr, ()) if one.event.sequence_nr >= 0 else last
            if not one.backward:
                by_number |= dict.fromkeys(one.numbers, own)
            last = own if one.event.name.startswith(NODE) else ()
            found.append(own)
        return found


def _marked(step: Step, ran: _Ran, own: tuple[Origin, ...]) -> Step:
    fallback = ran.compiled and _steps_inductor.is_fallback(step.name)
    return replace(step, name=step.name.removeprefix(NODE), origins=own, fallback=fallback, backward=ran.backward)


def _ran(event: Any, inside: _Ran) -> Iterator[_Ran]:
    """Yield the outermost operators, kernels and autograd nodes inside an event, in the order of their beginning."""
    for child in sorted(event.cpu_children, key=lambda one: one.time_range.start):
        here, name = replace(inside, event=child), child.name
        if name.startswith(CALLED):
            yield from _ran(child, replace(here, called=int(name.removeprefix(CALLED))))
        elif name == BACKWARD:
            yield from _ran(child, replace(here, backward=True))
        elif name.startswith(COMPILED):
            yield from _ran(child, replace(here, compiled=True))
        elif name.endswith(COMPILED_NODE) or not ("::" in name or name.startswith(steps.KERNELS)):
            yield from _ran(child, here)
        else:
            yield here


@contextlib.contextmanager
def _compiling(**settings: Any) -> Iterator[None]:
    """Compile with settings of inductor, and compile every graph: one from a cache would not be seen."""
    from torch._functorch import config as autograd
    from torch._inductor import config

    with config.patch({**settings, "fx_graph_cache": False}), autograd.patch(enable_autograd_cache=False):
        yield


def compiled(make: Callable[[], TrainingStep], inputs: Tensors, expected: Expected, device: str) -> Recorded:
    """Compile a step. Raises ExportError if it computes something else than eager.

    If the model draws random numbers, a step that takes them from eager's generator is compared, since inductor's own
    are others.
    """
    if expected.random:
        with _compiling(fallback_random=True):
            expected.require(make().result(inputs))
        torch.compiler.reset()
    step = make()
    watched = Watched(frozenset(origins.within(name) for name, _ in step.module.named_modules()))
    with watched.watching():
        found = step.result(inputs)
    if not expected.random:
        expected.require(found)
    return Recorded(step, watched, device)
