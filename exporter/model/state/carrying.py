"""Turning an artifact of a function of inputs and state into one that carries its state itself."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from exporter.core import contract as contracts
from exporter.core import tolerances
from exporter.core.contract_records import Contract, StateTensor, TensorSpec
from exporter.core.errors import ContractError, ExportError
from exporter.core.expressions import Expression
from exporter.core.size_range import Sizes
from exporter.model.torchscript import codegen

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Run, Tensors

Shapes = Sequence[Sequence[int]]
_COPIES = ("clone", "contiguous", "reshape", "lift_fresh_copy", "flatten", "unflatten")
BUFFER = "state_"  # prefix of the name of a state buffer, followed by its number


def name(index: int) -> str:
    """Return the name of the buffer of a state tensor."""
    return f"{BUFFER}{index}"


def fixed_initial(contract: Contract) -> list[torch.Tensor]:
    """Return the initial state at its sizes. Raises ExportError if they follow the inputs': buffers are fixed."""
    from exporter.model.state import stateful as states

    made = []
    for tensor in contract.state.tensors if contract.state else ():
        moving = [dim for dim in tensor.shape if isinstance(dim, str)]
        if moving:
            symbols = " and ".join(Expression.parse(moving[0]).names)
            raise ExportError(
                f"{tensor.spec.name} has the size {moving[0]}, but the state that this target keeps inside is fixed",
                f"--state inputs makes it an input and an output; --dynamic without {symbols} fixes its size",
            )
        shape = contracts.shape_at(tensor.spec, {})
        made.append(states.initial(tensor).expand(shape).clone())
    return made


def module(
    function: torch.nn.Module, contract: Contract, device: str, computed: Collection[int] = ()
) -> torch.nn.Module:
    """Return the function as a module whose calls update its state in buffers. Raises ExportError like `fixed_initial`.

    `computed` are indices into the function's results (outputs, then state) that `passed_on` returns.
    """
    import torch

    initial = fixed_initial(contract)

    class Carrying(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = function
            for index, tensor in enumerate(initial):
                self.register_buffer(name(index), tensor.to(device))

        def forward(self, *inputs: torch.Tensor) -> Tensors:
            held = [self.get_buffer(name(index)) for index in range(len(initial))]
            given: Tensors = self.function(*inputs, *(tensor.clone() for tensor in held))
            outputs = tuple(_computed(t) if index in computed else t for index, t in enumerate(given))
            count = len(outputs) - len(held)
            for tensor, following in zip(held, outputs[count:], strict=True):
                tensor.copy_(following)
            return outputs[:count]

    made = Carrying()
    made.training = False  # not by eval(), which a graph from torch.export refuses
    return made


def _computed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values as the result of a computation."""
    import torch

    return tensor * 1 if tensor.is_complex() else torch.maximum(tensor, tensor)


def passed_on(program: torch.export.ExportedProgram) -> set[int]:
    """Return the indices of results that are copies or views of what a state buffer held before the call.

    Inductor (torch 2.11 to 2.14) removes the copies of such values and reads them from the buffer after it was written
    to: `y = self.last.clone(); self.last.copy_(x)` returns x.
    """
    import torch

    signature, nodes = program.graph_signature, {node.name: node for node in program.graph.nodes}
    buffers = {node: buffer for node, buffer in signature.inputs_to_buffers.items() if buffer.startswith(BUFFER)}
    made = {index: nodes[name] for index, name in enumerate(signature.user_outputs) if name in nodes}
    count = len(signature.user_outputs)
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0].name in buffers:
            made[count + int(buffers[node.args[0].name].removeprefix(BUFFER))] = node.args[1]
    return {index for index, node in made.items() if _source(node).name in buffers}


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that a node copies or views, or the node itself if it computes something."""
    while True:
        name = getattr(node.target, "_opname", "")
        views = node.target is operator.getitem or getattr(node.target, "is_view", False)
        if name not in _COPIES and name != "copy_" and not views:
            return node
        node = node.args[name == "copy_"]  # type: ignore[assignment]


def script_module(function: torch.jit.ScriptModule, contract: Contract, device: str) -> torch.jit.ScriptModule:
    """Return the function with its state in attributes of any size, and a method `reset` for the initial state."""
    import torch

    from exporter.model.state import stateful as states

    assert contract.state is not None
    shell = torch.nn.Module()
    shell.add_module("function", torch.jit._recursive.wrap_cpp_module(function._c))  # freezing loses the Python type
    shell.fresh = True  # type: ignore[assignment]
    for index, tensor in enumerate(contract.state.tensors):
        initial = states.initial(tensor).to(device)
        shell.register_buffer(
            f"initial_{index}", initial.reshape([1] * (len(tensor.shape) - initial.dim()) + [*initial.shape])
        )
        shell.register_buffer(name(index), torch.empty(0, dtype=initial.dtype, device=device))
    inputs = codegen.arguments([spec.name for spec in contract.inputs])
    given = codegen.unused("given", inputs)
    held = [f"self.{name(index)}" for index in range(len(contract.state.tensors))]
    kinds = ", ".join(["Tensor"] * len(contract.outputs))
    lines = [f"def forward(self, {', '.join(f'{i}: Tensor' for i in inputs)}) -> Tuple[{kinds}]:", "    if self.fresh:"]
    for index, tensor in enumerate(contract.state.tensors):
        lines.append(
            f"        {held[index]} = self.initial_{index}.expand([{', '.join(_sizes(tensor, contract))}]).clone()"
        )
    lines.append("        self.fresh = False")
    for index, tensor in enumerate(contract.state.tensors):
        lines += _same_sizes(tensor, held[index], contract)
    lines.append(f"    {given} = self.function({', '.join([*inputs, *held])})")
    first = len(contract.outputs)
    lines += [f"    {place} = {given}[{first + index}].clone()" for index, place in enumerate(held)]
    lines.append(f"    return ({''.join(f'{given}[{index}], ' for index in range(first))})")
    lines += ["", "def reset(self) -> None:", "    self.fresh = True", ""]
    return codegen.define(shell, "\n".join(lines))


def _sizes(tensor: StateTensor, contract: Contract) -> list[str]:
    """Return a state tensor's sizes as expressions of the inputs'. Raises ExportError if no input determines one."""
    return [str(dim) if isinstance(dim, int) else _size(str(dim), tensor, contract) for dim in tensor.shape]


def _size(dim: str, tensor: StateTensor, contract: Contract) -> str:
    wanted = Expression.parse(dim)
    names = codegen.arguments([spec.name for spec in contract.inputs])
    for name, spec in zip(names, contract.inputs, strict=True):
        for axis, size in enumerate(spec.shape):
            known = Expression.parse(size) if isinstance(size, str) else None
            if known is not None and known.names == wanted.names and known.divisor == 1 and not known.is_sum:
                symbol = f"(({name}.size({axis}) - ({known.offset})) // {known.terms[0][1]})"
                return f"({wanted.terms[0][1]} * {symbol} + ({wanted.offset})) // {wanted.divisor}"
    raise ExportError(f"{tensor.spec.name} has the size {dim}, which no input determines", "give --state inputs")


def _same_sizes(tensor: StateTensor, held: str, contract: Contract) -> list[str]:
    """Return code lines that reject a call whose sizes differ from those of the current state."""
    lines = []
    for axis, dim in enumerate(tensor.shape):
        if isinstance(dim, str):
            said = f"{tensor.spec.name} differs from the inputs of this call in {dim}: call reset() first"
            lines += [
                f"    if {held}.size({axis}) != {_size(dim, tensor, contract)}:",
                f"        raise RuntimeError({said!r})",
            ]
    return lines


def repeats(run: Run, graph: torch.export.ExportedProgram, example: Tensors, calls: int = 4) -> bool:
    """Return whether an artifact carries state like its program over some calls of the example.

    The artifact keeps the state of these calls; the program, whose buffers its module shares, is restored.
    """
    import torch

    held = {key: tensor for key, tensor in graph.state_dict.items() if key.startswith(BUFFER)}
    kept = {key: tensor.clone() for key, tensor in held.items()}
    module, count = graph.module(check_guards=False), len(graph.graph_signature.user_inputs)
    inputs = example[:count]
    try:
        with torch.no_grad():
            return all(
                agree(got, want)
                for _ in range(calls)
                for got, want in zip(run(tuple(t.clone() for t in inputs)), module(*inputs), strict=True)
            )
    finally:
        for key, tensor in kept.items():
            held[key].copy_(tensor)


def agree(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether two outputs are close enough to come from the same computation; the golden judges accuracy."""
    import torch

    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not want.is_floating_point() and not want.is_complex():
        return torch.equal(got, want)
    tolerance = tolerances.of_dtype(str(want.dtype).removeprefix("torch."))
    largest = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 0.0
    return torch.allclose(got, want, rtol=0.0, atol=tolerance.atol + tolerance.rtol * largest, equal_nan=True)


class Carried:
    """A function of inputs and state that carries its state between calls if the contract keeps state inside."""

    def __init__(self, function: Run, contract: Contract) -> None:
        self._function, self._contract = function, contract
        self._state: Tensors = ()
        self.reset()

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return outputs, without state that is kept inside. Raises ContractError if sizes differ from the state's."""
        if not contracts.keeps_state(self._contract):
            return self._function(inputs)
        if not self._state:
            self._state = initial(self._contract, inputs)
        require_sizes(self._contract, self._state, inputs)
        outputs = self._function((*inputs, *self._state))
        count = len(self._contract.outputs)
        self._state = tuple(tensor.clone() for tensor in outputs[count:])
        return outputs[:count]

    def reset(self) -> None:
        """Restore the initial state."""
        self._state = ()


def initial(contract: Contract, inputs: Sequence[torch.Tensor]) -> Tensors:
    """Return the initial state at the sizes of these inputs, on their device."""
    from exporter.model.state import stateful as states

    sizes = _symbols(contract, inputs)
    return tuple(
        states.initial(tensor).to(inputs[0].device).expand(contracts.shape_at(tensor.spec, sizes)).clone()
        for tensor in _tensors(contract)
    )


def require_sizes(contract: Contract, state: Tensors, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ContractError if the sizes of these inputs differ from those of the current state."""
    state_shapes(contract, inputs, [tuple(held.shape) for held in state])


def state_shapes(contract: Contract, inputs: Sequence[torch.Tensor], known: Shapes | None) -> Shapes:
    """Return the state's shapes at the sizes of these inputs. Raises ContractError if the `known` shapes differ."""
    if not any(isinstance(dim, str) for tensor in _tensors(contract) for dim in tensor.shape):
        return []
    sizes = _symbols(contract, inputs)
    found: Shapes = [contracts.shape_at(tensor.spec, sizes) for tensor in _tensors(contract)]
    for tensor, held, wanted in zip(_tensors(contract), found if known is None else known, found, strict=True):
        for dim, got, size in zip(tensor.shape, held, wanted, strict=True):
            if got != size:
                raise ContractError(
                    f"{tensor.spec.name} has {dim} {got}, but the inputs have {size}: call reset() first"
                )
    return found


def _tensors(contract: Contract) -> tuple[StateTensor, ...]:
    return contract.state.tensors if contract.state else ()


def _symbols(contract: Contract, inputs: Sequence[torch.Tensor]) -> Sizes:
    from exporter.model.flattening import dtype_name

    given = zip(contract.inputs, inputs, strict=False)
    return contracts.sizes_of(contract, [TensorSpec(s.name, dtype_name(t.dtype), tuple(t.shape)) for s, t in given])
