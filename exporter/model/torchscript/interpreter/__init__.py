"""Making TorchScript readable for torch.export by running the program's graph node by node in Python.

torch.export sees a ScriptModule as one opaque call. The interpreter represents sizes as Python numbers that may be
symbolic, so that dimensions stay dynamic. Loops and branches on sizes run in Python, and a branch on a tensor's value
becomes torch.cond if both sides are pure.

This file is long because running a node, a block and a call are mutually recursive.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.core.errors import ExportError
from exporter.model.torchscript.interpreter import graph as graphs
from exporter.model.torchscript.interpreter import operators
from exporter.model.torchscript.interpreter.numbers import Number, Predicate, as_output, as_tensor, as_truth

Environment = dict[str, Any]
TYPES: dict[str, Any] = {
    name: kind
    for name, plain in (("Tensor", torch.Tensor), ("int", int), ("float", float), ("bool", bool), ("str", str))
    for name, kind in (
        (name, plain),
        (f"Optional[{name}]", typing.Optional[plain]),  # noqa: UP045  what torch.fx writes and torch.jit reads
        (f"List[{name}]", typing.List[plain]),  # type: ignore[valid-type]  # noqa: UP006
        (f"Dict[str, {name}]", typing.Dict[str, plain]),  # type: ignore[valid-type]  # noqa: UP006
    )
}


@dataclass(frozen=True)
class Instruction:
    """One node: the names of its inputs and outputs, and its function.

    `run` takes the environment, then the inputs. `many` means that it returns a sequence with one item per output.
    """

    run: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    many: bool
    pure: bool


@dataclass(frozen=True)
class Block:
    """Nodes in order, with the names of the block's parameters and results."""

    parameters: tuple[str, ...]
    steps: tuple[Instruction, ...]
    results: tuple[str, ...]

    @property
    def pure(self) -> bool:
        """Return whether the block has no side effects."""
        return all(step.pure for step in self.steps)

    def run(self, environment: Environment, *values: Any) -> tuple[Any, ...]:
        """Return the results for these values of the parameters."""
        environment.update(zip(self.parameters, values, strict=True))
        for step in self.steps:
            result = step.run(environment, *[environment[name] for name in step.inputs])
            if not step.many:
                environment[step.outputs[0]] = result
            elif step.outputs:
                environment.update(zip(step.outputs, result, strict=True))
        return tuple(environment[name] for name in self.results)


@dataclass(frozen=True)
class Argument:
    """An argument of the program's forward."""

    name: str
    kind: Any
    required: bool
    default: Any


class Interpreter(torch.nn.Module):
    """A TorchScript program as a plain module, with its weights registered under the program's names.

    In an eager call TorchScript runs the program; under torch.export and torch.compile it is interpreted. If a program
    sets its own attributes, or has attributes that a graph cannot take as inputs, the program and this module keep
    separate state until `interpret` is called; such a program is interpreted under torch.jit.trace too.
    """

    def __init__(
        self, scripted: torch.jit.ScriptModule, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
    ) -> None:
        """`inputs` renames the arguments; `outputs` turns the output, a tensor or a tuple of them, into a dict."""
        super().__init__()
        schema: Any = scripted._c._get_method("forward").schema
        arguments = schema.arguments[1:]
        self.arguments = tuple(
            Argument(name, a.type, not a.has_default_value(), a.default_value)
            for a, name in zip(arguments, inputs or [a.name for a in arguments], strict=True)
        )
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(a.name, kind) for a in self.arguments])
        self.outputs = tuple(outputs)
        self._single = str(schema.returns[0].type) == "Tensor"
        lifted = graphs.lift(scripted)
        self._home, self._single_precision = lifted.device, lifted.single
        dtypes = [tensor.dtype for tensor in lifted.tensors.values()]
        self._witness = dtypes.index(torch.float32) if torch.float32 in dtypes else None
        self._stateful = bool(lifted.state)
        self._unknown: list[str] = []
        self._block = _compile(lifted.graph, self._unknown)
        self._function = None if self._stateful else _function(lifted.graph)
        self._original = (scripted,) if self._stateful else ()  # a tuple keeps it out of the module tree
        self._names: tuple[str, ...] = ()
        for name, value in lifted.state.items():
            _register(self, name, value.clone() if isinstance(value, torch.Tensor) else value, False)
        self._names = tuple(_register(self, name, t, name in lifted.parameters) for name, t in lifted.tensors.items())
        self._program = (scripted,)  # set last, because __getattr__ falls back to it
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program. Raises ExportError if it must be interpreted but has unsupported nodes."""
        values = [*self._bind(args, kwargs), *self._weights()]
        values += self._follow(values)
        if self._function is not None and not torch.compiler.is_compiling():
            return self._named(self._function(*values))
        if self._original and not (torch.compiler.is_compiling() or torch._C._get_tracing_state()):
            return self._named(self._original[0](*values[: len(self.arguments)]))
        if self._unknown:
            raise ExportError(
                f"TorchScript nodes that cannot be interpreted: {'; '.join(dict.fromkeys(self._unknown))}",
                "export the original model instead",
            )
        (result,) = self._block.run({}, *([self] if self._stateful else []), *values)
        return self._named(pytree.tree_map(as_output, result))

    def __deepcopy__(self, memo: dict[int, Any]) -> Interpreter:
        """Return a copy with separate weights; it shares the program, which never changes."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        shared = {name: vars(self)[name] for name in ("arguments", "_block", "_function")}
        if not self._stateful:
            shared["_program"] = self._program
        made.__dict__ |= {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name not in shared}
        made.__dict__ |= shared
        return made

    @property
    def runs_program(self) -> bool:
        """Return whether TorchScript runs a program whose state is separate from this module's."""
        return bool(self._original)

    def interpret(self) -> None:
        """Run the program node by node from now on, with its state in this module's attributes."""
        self._original = ()

    @property
    def has_while(self) -> bool:
        """Return whether the program has a `while` loop, which TorchScript runs in C++ and cannot be interrupted."""
        graph: Any = self._program[0].inlined_graph  # its nodes live as long as it does
        loops = graph.findAllNodes("prim::Loop")
        return any(next(loop.inputs()).toIValue() == sys.maxsize for loop in loops)  # the maximum number of iterations

    @property
    def renamed(self) -> bool:
        """Return whether this module renames the program's arguments or outputs."""
        schema: Any = self._program[0]._c._get_method("forward").schema
        return bool(self.outputs) or [a.name for a in schema.arguments[1:]] != [a.name for a in self.arguments]

    def program(self) -> torch.jit.ScriptModule:
        """Return the original program with this module's weights."""
        scripted = self._program[0]
        if not self._stateful:
            device = next((tensor.device for tensor in self.state_dict().values()), torch.device("cpu"))
            scripted = copy.deepcopy(scripted).to(device)
            scripted.load_state_dict(self.state_dict(), strict=False)
        return scripted

    def __getattr__(self, name: str) -> Any:
        """Fall back to the program's attributes, for code that uses more than forward."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            program = self.__dict__.get("_program")
            if program is None or name.startswith("_") or not hasattr(program[0], name):
                raise
        found = getattr(program[0], name)
        if callable(found) and torch.compiler.is_compiling():
            raise ExportError(
                f"the code calls {name} of a TorchScript module, but only forward can be interpreted",
                "ship trace or script, or export the module that it was made from",
            )
        return found

    def _named(self, result: Any) -> Any:
        if not self.outputs:
            return result
        return dict(zip(self.outputs, (result,) if self._single else result, strict=True))

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Return a shell around the program, which torch.jit.script compiles in place of this module."""
        shell = torch.fx.Graph()
        given = [self._parameter(shell, argument) for argument in self.arguments]
        if self._function is None:
            answer: Any = shell.call_module("program", tuple(given))
        else:
            weights = [shell.get_attr(name) for name in self._names]
            answer = shell.call_function(self._function, (*given, *weights, *self._follow(self._weights())))
        if self.outputs:
            answer = {
                name: answer if self._single else shell.call_function(operator.getitem, (answer, i))
                for i, name in enumerate(self.outputs)
            }
        shell.output(answer)
        return torch.fx.GraphModule({"program": self._program[0]} if self._stateful else self, shell)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Interpreter:
        for original in self._original:
            original._apply(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _parameter(self, shell: torch.fx.Graph, argument: Argument) -> Any:
        """Return an argument of the shell; an optional one whose type Python cannot express keeps its default."""
        kind = TYPES.get(argument.kind.annotation_str)
        if argument.required:
            return shell.placeholder(argument.name, type_expr=kind)
        return argument.default if kind is None else shell.placeholder(argument.name, kind, argument.default)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return the values of all arguments, in order. Raises TypeError if one is missing or unknown."""
        named = kwargs | dict(zip([a.name for a in self.arguments], args, strict=False))
        missing = [a.name for a in self.arguments if a.required and a.name not in named]
        unknown = sorted(named.keys() - {a.name for a in self.arguments})
        if missing or unknown or len(args) > len(self.arguments):
            known = ", ".join(a.name for a in self.arguments)
            raise TypeError(f"forward takes {known}; missing: {missing}, unknown: {unknown}")
        return [named.get(a.name, a.default) for a in self.arguments]

    def _weights(self) -> list[Any]:
        return [functools.reduce(getattr, name.split("."), self) for name in self._names]

    def _follow(self, values: Sequence[Any]) -> list[Any]:
        """Return the weights' device and precision for the graph; by default the inputs' device and torch's dtype."""
        followed: list[Any] = []
        if self._home is not None:
            leaves = pytree.tree_leaves([*self._weights(), *values])
            followed.append(next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), self._home))
        if self._single_precision:
            dtype = self._weights()[self._witness].dtype if self._witness is not None else torch.get_default_dtype()
            followed.append(graphs.DOUBLE if dtype == torch.float64 else graphs.SINGLE)
        return followed


def taken_over(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with every TorchScript module in it (or the model itself) replaced by an Interpreter."""
    if isinstance(model, torch.jit.ScriptModule):
        return Interpreter(_at_rest(model))
    known: dict[int, Interpreter] = {}
    for parent in list(model.modules()):
        for name, child in () if isinstance(parent, torch.jit.ScriptModule) else list(parent.named_children()):
            if isinstance(child, torch.jit.ScriptModule):
                if id(child) not in known:
                    known[id(child)] = Interpreter(_at_rest(child))
                parent._modules[name] = known[id(child)]
    return model


def _at_rest(scripted: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    for parameter in scripted.parameters():
        parameter.requires_grad_(False)
    return scripted.eval()


def _function(graph: Any) -> Any:
    made: Any = torch._C._create_function_from_graph("__torch__.program", graph)
    made.__name__, made.__module__ = "program", __name__  # torch.fx asks for these
    return made


def _register(root: torch.nn.Module, name: str, value: Any, parameter: bool) -> str:
    """Register a value under a dotted name; return the name, changed where nn.Module reserves it."""
    *folders, last = name.split(".")
    scope, path = root, list[str]()
    for folder in folders:
        while hasattr(scope, folder) and folder not in scope._modules:
            folder += "_"
        if folder not in scope._modules:
            scope.add_module(folder, torch.nn.Module())
        path.append(folder)
        scope = scope.get_submodule(folder)
    while hasattr(scope, last):
        last += "_"
    if parameter:
        scope.register_parameter(last, torch.nn.Parameter(value.detach(), requires_grad=False))
    elif isinstance(value, torch.Tensor):
        scope.register_buffer(last, value.detach())
    else:
        setattr(scope, last, value)
    return ".".join([*path, last])


def _compile(block: Any, unknown: list[str]) -> Block:
    """Compile a block of a graph; unsupported nodes are added to `unknown`, with their lines."""
    return Block(
        graphs.names(block.inputs()),
        tuple(_step(node, unknown) for node in block.nodes()),
        graphs.names(block.outputs()),
    )


def _step(node: Any, unknown: list[str]) -> Instruction:
    kind = node.kind()
    outputs = graphs.names(node.outputs())
    many = kind in ("prim::ListUnpack", "prim::TupleUnpack", "prim::If", "prim::Loop") or len(outputs) != 1
    blocks = [_compile(inner, unknown) for inner in node.blocks()]
    run, pure = _action(node, blocks)
    if run is None:
        unknown.append(f"{operators.name(kind, node.schema())} ({graphs.where(node)})")
        run = _same
    return Instruction(run, graphs.names(node.inputs()), outputs, many, pure)


def _action(node: Any, blocks: list[Block]) -> tuple[Callable[..., Any] | None, bool]:
    """Return a node's function of environment and inputs (None if unsupported), and whether it is pure."""
    kind = node.kind()
    if kind == "prim::Constant":
        value = graphs.constant(node)
        if isinstance(value, torch.Tensor):
            value = Number(value.item(), value.dtype)
        return lambda environment: value, True
    if kind == "prim::If":
        return _branch(node, *blocks), all(block.pure for block in blocks)
    if kind == "prim::Loop":
        return functools.partial(_loop, blocks[0]), blocks[0].pure
    if kind == "prim::GetAttr":
        name = node.s("name")
        return lambda environment, owner: getattr(owner, name), True
    if kind == "prim::SetAttr":
        name = node.s("name")
        return lambda environment, owner, value: setattr(owner, name, as_tensor(value)), False
    if kind == "prim::RaiseException":
        return _raise, False
    if kind == "prim::isinstance":
        kinds = node.tys("types")
        return lambda environment, value: any(operators.is_a(value, wanted) for wanted in kinds), True
    if kind in ("prim::Enter", "prim::Exit"):
        known = "grad_mode" in str(node.inputsAt(0).type().annotation_str)
        return (_same if known else None), True
    found = operators.find(kind, node.schema())
    if found is None:
        return None, True
    return lambda environment, *values: found.run(*values), found.pure


def _same(environment: Environment, *values: Any) -> Any:
    return values[0] if values else None


def _raise(environment: Environment, message: Any = "", *_: Any) -> None:
    raise RuntimeError(f"the program raises: {message}")


def _loop(block: Block, environment: Environment, limit: Any, go: Any, *carried: Any) -> Sequence[Any]:
    index, values = 0, list(carried)
    while go and index < limit:
        go, *values = block.run(environment, index, *values)
        index += 1
    return values


def _branch(node: Any, yes: Block, no: Block) -> Callable[..., Sequence[Any]]:
    """Return a Python `if`, or torch.cond for a condition on a tensor if both sides are pure and return tensors."""
    kinds = [value.type().kind() for value in node.outputs()]
    lowered = bool(kinds) and set(kinds) <= {"TensorType", "BoolType"} and yes.pure and no.pure
    captured = graphs.captured(node)

    def run(environment: Environment, condition: Any) -> Sequence[Any]:
        if not (lowered and isinstance(condition, Predicate)):
            return (yes if condition else no).run(environment)
        operands = {name: environment[name] for name in captured if isinstance(environment[name], torch.Tensor)}

        def side(block: Block) -> Callable[..., tuple[torch.Tensor, ...]]:
            def give(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
                results = map(as_truth, block.run(environment | dict(zip(operands, tensors, strict=True))))
                return tuple(r.clone() if any(r is t for t in tensors) else r for r in results)

            return give

        truth = as_truth(condition)
        results = torch.ops.higher_order.cond(truth, side(yes), side(no), tuple(operands.values()))
        return [Predicate(r) if kind == "BoolType" else r for r, kind in zip(results, kinds, strict=True)]

    return run
