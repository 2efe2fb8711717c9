"""Translating a torch.export graph to lines of TorchScript.

Operators are called by name, and TorchScript chooses the overload by the types of the arguments, so each constant is
written in the type that the operator's schema requires. Symbolic sizes become arithmetic on numbers, and higher-order
operators become `if`, `while` and `for`. Unsupported constructs are collected, not raised, so that the caller can name
all of them at once.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from exporter.core.source_lines import place
from exporter.model.torchscript.codegen import attribute, literal
from exporter.model.torchscript.control_flow import REGIONS
from exporter.model.torchscript.python_operators import METHODS

Value = Any  # an expression, or a tuple of them for an inlined operator

RESERVED = frozenset({"self", "torch", "device", "List", "Tuple", "Dict", "Optional", "Tensor", *dir(builtins)})
ITEMS = ("aten::item", "aten::_local_scalar_dense")
RENAMED = {  # schemas with SymInt, which TorchScript's compiler does not accept as int
    "aten::sym_size": "aten::size",
    "aten::sym_stride": "aten::stride",
    "aten::sym_numel": "aten::numel",
    "aten::sym_storage_offset": "aten::storage_offset",
    "aten::sym_is_contiguous": "aten::is_contiguous",
}
ARITHMETIC = {  # by function name, from operator, math or torch.sym_*
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "floordiv": "{} // {}",
    "mod": "{} % {}",
    "truediv": "{} / {}",
    "pow": "{} ** {}",
    "lshift": "{} << {}",
    "rshift": "{} >> {}",
    "and": "{} & {}",
    "or": "{} | {}",
    "xor": "{} ^ {}",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "neg": "-{}",
    "abs": "abs({})",
    "not": "not {}",
    "max": "max({}, {})",
    "min": "min({}, {})",
    "float": "float({})",
    "int": "int({})",
    "trunc": "int({})",
    "round": "round({})",
    "ceil": "torch.ops.aten.ceil({})",
    "floor": "torch.ops.aten.floor({})",
    "ite": "{1} if {0} else {2}",
    **{name: f"torch.ops.aten.{name}(float({{}}))" for name in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh")},
}


class Lowering:
    """Lines of TorchScript for a function's body, the methods and constants that they use, and unsupported constructs.

    `follows` is the device of the first input at export. Constants of the graph that name it follow that input's device
    instead, because the artifact may be loaded on another one.
    """

    def __init__(self, follows: torch.device | None = None) -> None:
        self.lines: list[str] = []
        self.origins: list[fx.Node | None] = []
        self.methods: dict[str, str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.missing: dict[tuple[str, str], None] = {}  # unsupported construct, and the line that led to it
        self.follows = follows
        self._values: dict[fx.Node, Value] = {}
        self._taken: dict[str, int] = {}
        self._depth = 1
        self._node: fx.Node | None = None

    def name(self, wanted: str) -> str:
        """Return an unused variable name."""
        count = self._taken.get(wanted, 1 if wanted in RESERVED else 0)
        self._taken[wanted] = count + 1
        return self.name(f"{wanted}_{count}") if count else wanted

    def reserve(self, name: str) -> str:
        """Reserve exactly this name; call before `name`."""
        self._taken[name] = 1
        return name

    def say(self, line: str) -> None:
        """Add a line."""
        self.lines.append("    " * self._depth + line)
        self.origins.append(self._node)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write a head line and indent the lines written within the context."""
        self.say(head)
        self._depth += 1
        yield
        self.say("pass")  # the block may be empty
        self._depth -= 1

    def refused(self, what: str, node: fx.Node) -> Value:
        """Record that `what` is unsupported; return a placeholder value."""
        self.missing[what, source_line(node)] = None
        value = node.meta.get("val")
        return ("None",) * len(value) if isinstance(value, (tuple, list)) else "None"

    def value(self, argument: Any) -> Value:
        """Return the expression of a node or a number."""
        if isinstance(argument, fx.Node):
            return self._values[argument]
        text = literal(argument, torch._C.NumberType.get())
        return f"({text})" if text.startswith("-") else text

    def values(self, arguments: Any) -> list[Value]:
        """Return the expressions of several nodes or numbers."""
        return [self.value(argument) for argument in arguments]

    def inline(self, module: fx.GraphModule, values: Sequence[Value]) -> list[Value]:
        """Write the graph with these values of its placeholders; return its outputs' values.

        Nodes without effect are omitted, including assertions, because nothing uses their results.
        """
        outer, given, live = self._node, iter(values), _live(module.graph)
        outputs: Any = ()
        for node in module.graph.nodes:
            self._node = node if node.op == "call_function" else outer
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "output":
                outputs = node.args[0]
            elif node.op == "get_attr" and isinstance(getattr(module, str(node.target)), torch.Tensor):
                self._values[node] = self._constant(node, module)
            elif node.op == "call_function" and node in live:
                self._values[node] = self._call(node, module)
        self._node = outer
        return self.values(outputs if isinstance(outputs, (tuple, list)) else (outputs,))

    def _constant(self, node: fx.Node, owner: fx.GraphModule) -> str:
        """Return the expression of a tensor that a branch or loop owns."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = getattr(owner, str(node.target))
        return attribute(name)

    def _call(self, node: fx.Node, owner: fx.GraphModule) -> Value:
        target: Any = node.target
        if isinstance(target, HigherOrderOperator):
            write = REGIONS.get(target.name())
            return write(self, node, owner) if write else self.refused(f"higher_order.{target.name()}", node)
        if getattr(target, "__name__", "") == "getitem":
            source, index = self.value(node.args[0]), cast(int, node.args[1])
            return source[index] if isinstance(source, tuple) else self._assign(node, f"{source}[{index}]")
        expression = self._operator(node, target) if isinstance(target, OpOverload) else self._arithmetic(node, target)
        return self._assign(node, expression)

    def _assign(self, node: fx.Node, expression: str) -> str:
        name = self.name(node.name)
        self.say(f"{name} = {expression}")
        return name

    def _operator(self, node: fx.Node, op: OpOverload) -> str:
        schema = op._schema
        if schema.name in ITEMS:
            return f"{python_type(node)}({self.value(node.args[0])})"
        if str(op) == "aten.view.dtype":  # TorchScript's view supports only sizes
            return f"torch.ops.aten.view_copy({self.value(node.args[0])}, dtype={node.args[1]})"
        name = RENAMED.get(schema.name, schema.name)
        if name in METHODS:
            self.methods[name] = METHODS[name]
            return f"self.{op._opname}({', '.join(map(self.value, [*node.args, *node.kwargs.values()]))})"
        if op._defined_in_python or not torch._C._jit_get_schemas_for_operator(name):
            return cast(str, self.refused(str(op).removesuffix(".default"), node))
        positional = [self._argument(node, i, schema.arguments[i].type, value) for i, value in enumerate(node.args)]
        kinds = {argument.name: argument.type for argument in schema.arguments}
        named = [f"{key}={literal(value, kinds[key], self._leaf)}" for key, value in node.kwargs.items()]
        call = f"torch.ops.{name.replace('::', '.')}({', '.join([*positional, *named])})"
        return f"torch.ops.aten.to({call}, torch.bool)" if _loses_bool(node, op) else call

    def _argument(self, node: fx.Node, index: int, kind: Any, value: Any) -> str:
        if kind.kind() == "TensorType" and python_type(value) and not _takes_number(node, index):
            return f"torch.ops.aten.scalar_tensor({self.value(value)}, dtype={_promoted(node, value)})"
        return literal(value, kind, self._leaf)

    def _leaf(self, value: Any, kind: Any) -> str | None:
        if isinstance(value, fx.Node):
            text: str = self._values[value]
            return f"float({text})" if kind.kind() == "FloatType" and python_type(value) == "int" else text
        if isinstance(value, torch.device) and self.follows and value.type == self.follows.type:
            return "device"
        return None

    def _arithmetic(self, node: fx.Node, function: Any) -> str:
        name = getattr(function, "__name__", str(function)).removeprefix("_").removeprefix("sym_").removesuffix("_")
        if name == "sum":
            return " + ".join(self.value(term) for term in cast(Sequence[Any], node.args[0]))
        form, arguments = ARITHMETIC.get(name, ""), [argument for argument in node.args if argument is not None]
        if python_type(node) is None or form.count("{") != len(arguments):
            module = getattr(function, "__module__", "")
            return cast(str, self.refused(f"{module}.{getattr(function, '__name__', function)}", node))
        expression = form.format(*map(self.value, arguments))
        inexact = name in ("pow", "round") and python_type(node) == "int"  # these return floats in TorchScript
        return f"int({expression})" if inexact else expression


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Return nodes with side effects, and nodes that such a node or the output uses."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        target = node.target
        effect = isinstance(target, HigherOrderOperator) or (
            isinstance(target, OpOverload) and target._schema.is_mutable
        )
        if node.op == "output" or effect or node in live:
            live.update((node, *node.all_input_nodes))
    return live


def python_type(value: Any) -> str | None:
    """Return `int`, `float` or `bool` for a number or a node with a symbolic number; None otherwise."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    kinds = {"bool": (torch.SymBool, bool), "int": (torch.SymInt, int), "float": (torch.SymFloat, float)}
    return next((name for name, types in kinds.items() if isinstance(value, types)), None)


def _takes_number(node: fx.Node, index: int) -> bool:
    """Return whether some overload takes a number instead of a tensor as this argument."""
    schemas = torch._C._jit_get_schemas_for_operator(cast(OpOverload, node.target)._schema.name)
    return index > 0 and any(
        len(schema.arguments) > index and schema.arguments[index].type.kind() == "NumberType" for schema in schemas
    )


def _promoted(node: fx.Node, number: Any) -> torch.dtype:
    """Return the dtype in which eager computes with a number: the result's, except in comparisons."""
    dtype: torch.dtype = node.meta["val"].dtype
    if dtype is not torch.bool:
        return dtype
    return {"bool": torch.bool, "int": torch.int64}.get(str(python_type(number)), torch.float32)


def _loses_bool(node: fx.Node, op: OpOverload) -> bool:
    """Return whether a bool is passed as a number and makes the result bool; TorchScript would pass an int."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.bool or op._schema.is_mutable:
        return False
    given = {argument.name: value for argument, value in zip(op._schema.arguments, node.args, strict=False)}
    given.update(node.kwargs)
    return any(
        isinstance(given.get(argument.name), bool)
        and argument.type.annotation_str in ("number", "Optional[number]", "Tensor")
        for argument in op._schema.arguments
    )


def source_line(node: fx.Node) -> str:
    """Return `file.py:12`, the last line of the model's code that led to this node, or "" if unknown."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop(0)
        if where := place(current.meta.get("stack_trace") or ""):
            return where
        for before in _before(current):
            if before not in seen:
                seen.add(before)
                waiting.append(before)
    return ""


def _before(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a node uses; for a subgraph, the nodes in it."""
    owner = node.graph.owning_module
    if node.op == "get_attr" and owner is not None:
        inner = getattr(owner, str(node.target), None)
        return list(inner.graph.nodes) if isinstance(inner, fx.GraphModule) else []
    return node.all_input_nodes
