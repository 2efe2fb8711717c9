"""Recording what every operator of an eager call does: its time, its work, and where it was called."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.nn.modules import module as hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from exporter.core import source_lines
from exporter.core.profile_records import Origin, Step, Steps, Work
from exporter.evidence import operations
from exporter.model import origins, steps
from exporter.model.tensors import Run, Tensors

# These read only the rows that they return.
_GATHERS = ("embedding", "index_select", "gather", "index")
_RANGE = "exporter: "


class Recorder(TorchDispatchMode):
    """Records the operators of a call, those in branches and loops too. `where` returns the origin of the next one."""

    supports_higher_order_operators = True

    def __init__(self, where: Callable[[], Origin], device: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where, self.device = where, device
        self.works: list[Work] = []
        self.steps: list[Step] = []
        self.begun = time.perf_counter_ns()
        self.own_ns = 0  # of the recorder itself, so far

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return operations.inside(self, func, args, kwargs)
        if getattr(func, "overloadpacket", None) not in flop_registry and hasattr(func, "decompose"):
            with self:  # operators made of others are not taken apart inside branches
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        entered = time.perf_counter_ns()
        start = (entered - self.begun - self.own_ns) / 1000
        origin = self.where()
        begun = time.perf_counter_ns()
        if self.device == "cpu":
            out = func(*args, **kwargs)
        else:
            with torch.profiler.record_function(f"{_RANGE}{len(self.steps)}"):
                out = func(*args, **kwargs)
        took_ns = time.perf_counter_ns() - begun
        took = took_ns / 1000
        name = str(func.name())
        copy = took if name in steps.COPIES or name in ("aten::clone", "aten::_to_copy") else 0.0
        self.works.append(
            Work(
                origin.node,
                name,
                origin.module or "",
                origin.place,
                _flop(func, args, kwargs, out),
                _bytes(func, args, out),
            )
        )
        self.steps.append(Step(name, start, took, copy_us=copy, origins=(origin,)))
        self.own_ns += time.perf_counter_ns() - entered - took_ns
        return out


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> float | None:
    count = flop_registry.get(getattr(func, "overloadpacket", None))
    if count is None:
        return 0.0
    try:
        return float(count(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AssertionError):  # torch's formulas do not know every argument
        return None


def _bytes(func: Any, args: Any, out: Any) -> float:
    """Return the bytes that an operator must read and write at least; a view moves nothing."""
    results = getattr(getattr(func, "_schema", None), "returns", ())
    if any(one.alias_info is not None and not one.alias_info.is_write for one in results):
        return 0.0
    written = sum(map(_size, pytree.tree_leaves(out)))
    if getattr(func, "overloadpacket", None) and func.overloadpacket.__name__ in _GATHERS:
        return 2.0 * written
    return float(written + sum(map(_size, pytree.tree_leaves(args))))


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def of_program(graph: fx.GraphModule, inputs: Tensors) -> list[Work]:
    """Return the work of each node of an exported program, run by eager."""
    current = [Origin()]

    class Walk(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            current[0] = origins.of(n)
            return super().run_node(n)

    recorder = Recorder(lambda: current[0])
    with torch.no_grad(), recorder:
        Walk(graph, garbage_collect_values=True).run(*inputs)
    done: dict[str, Work] = {}
    for one in recorder.works:
        before = done.get(one.name, Work(one.name, "", one.module, one.place, 0.0))
        flop = None if one.flop is None or before.flop is None else one.flop + before.flop
        done[one.name] = Work(
            one.name, before.operator or one.operator, one.module, one.place, flop, one.bytes + before.bytes
        )
    taken = origins.inputs(graph.graph)
    operators = {node.name: node.target.name() for node in graph.graph.nodes if hasattr(node.target, "name")}
    return [
        Work(
            one.name,
            operators.get(one.name, one.operator),
            one.module,
            one.place,
            one.flop,
            one.bytes,
            taken.get(one.name, ()),
        )
        for one in done.values()
    ]


@contextlib.contextmanager
def modules_of(model: torch.nn.Module) -> Iterator[list[str]]:
    """Yield a list that ends with the path of the module that is running."""
    names = {id(module): name for name, module in model.named_modules()}
    running = [""]

    def enter(module: torch.nn.Module, inputs: object) -> None:
        running.append(names.get(id(module), running[-1]))

    def leave(module: torch.nn.Module, inputs: object, output: object) -> None:
        running.pop()

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield running
    finally:
        before.remove()
        after.remove()


class Eager:
    """Records the steps and the work of eager calls."""

    def __init__(self, model: torch.nn.Module, run: Run, device: str) -> None:
        self.model, self.run, self.device = model, run, device
        self.works: list[Work] = []

    def record(self, inputs: Tensors, runs: int) -> Steps:
        """Return the typical call of `runs` calls.

        Its duration is that of a call without the recorder, right before it.
        """
        return steps.typical([self._call(inputs) for _ in range(runs)])

    def where(self, running: Sequence[str]) -> Origin:
        """Return the origin of the next operator, in the last of the running modules."""
        return Origin(origins.within(running[-1]), source_lines.here())

    def _call(self, inputs: Tensors) -> Steps:
        self._synchronize()
        begun = time.perf_counter_ns()
        self.run(inputs)
        self._synchronize()
        took = (time.perf_counter_ns() - begun) / 1000
        with modules_of(self.model) as running:
            recorder = Recorder(lambda: self.where(running), self.device)

            def run(given: Tensors) -> Tensors:
                with recorder:
                    return self.run(given)

            recorder.begun = time.perf_counter_ns()
            found = recorder.steps
            if self.device == "cpu":
                run(inputs)
            else:
                found = self._on_gpu(recorder, run, inputs)
        self.works = recorder.works
        return Steps(tuple(found), took)

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def _on_gpu(self, recorder: Recorder, run: Run, inputs: Tensors) -> list[Step]:
        """Run under the profiler, which finds the kernels of each operator."""
        with torch.autograd.set_multithreading_enabled(False):  # a backward pass is then inside the call
            (call,) = steps.calls_of(run, inputs, self.device, 1)
        ranges = (one for one in steps.everything(call) if one.name.startswith(_RANGE) and one is not call)
        ordered = sorted(ranges, key=lambda one: one.time_range.start)
        return [steps.on_gpu(recorder.steps[int(one.name.removeprefix(_RANGE))], call, one) for one in ordered]
