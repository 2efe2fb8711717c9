"""A natively scripted model in a shell that takes and returns the contract's tensors.

TorchScript is typed, so the shell builds the lists, dicts and tuples that the model's parameters require. From the
output it extracts, by type, what eager's output at the example contains, in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.core.errors import ExportError
from exporter.model.flattening import output_name
from exporter.model.structure import key_name
from exporter.model.torchscript.codegen import define, literal, number_tensor, unused

Kind = Any  # torch._C.JitType and its subclasses
Rebuild = Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
NUMBERS = {bool: "BoolType", int: "IntType", float: "FloatType"}


@dataclass(frozen=True)
class _Given:
    """A tensor among the inputs, by the shell's name for it."""

    name: str


def wrap(
    scripted: Any, rebuild: Rebuild, names: Sequence[str], output: Any, leave_out: Collection[str] = ()
) -> torch.jit.ScriptModule:
    """Return a scripted model as a module that takes tensors under these names and returns a tuple of tensors.

    `rebuild` makes the model's arguments from the tensors. `output` is eager's at the example; numbers in it become
    tensors, and items named in `leave_out` are omitted. Raises ExportError, or whatever TorchScript's compiler
    raises, if types do not match.
    """
    args, kwargs = rebuild([_Given(name) for name in names])
    schema = scripted.forward.schema
    unpacking = _Unpacking(output, schema.returns[0].type, leave_out, names)
    leaves = unpacking.leaves()
    source = [
        f"def forward(self, {', '.join(f'{name}: Tensor' for name in names)}) -> "
        f"Tuple[{', '.join(['Tensor'] * len(leaves))}]:",
        f"    {unpacking.answer} = self.model({_arguments(schema.arguments[1:], args, kwargs)})",
        *unpacking.lines,
        f"    return ({''.join(f'{leaf}, ' for leaf in leaves)})",
        "",
    ]
    shell = torch.nn.Module()
    shell.add_module("model", scripted)
    return define(shell, "\n".join(source))


def _arguments(parameters: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    positional = [literal(value, p.type, _given) for value, p in zip(args, parameters, strict=False)]
    kinds = {p.name: p.type for p in parameters}
    return ", ".join([*positional, *(f"{name}={literal(v, kinds[name], _given)}" for name, v in kwargs.items())])


def _given(value: Any, kind: Kind) -> str | None:
    return value.name if isinstance(value, _Given) else None


class _Unpacking:
    """Expressions for the leaves of a scripted model's output, and the lines that must precede them."""

    def __init__(self, output: Any, kind: Kind, leave_out: Collection[str], taken: Collection[str]) -> None:
        self.lines: list[str] = []
        self.answer = unused("answer", taken)
        self._output, self._leave_out, self._taken = output, leave_out, taken
        self._root, self._kind = _matching(output, kind, self.answer)

    def leaves(self) -> list[str]:
        """Return expressions for the output's tensors, in pytree's order. Numbers become tensors; None is omitted."""
        paths, _ = pytree.tree_flatten_with_path(self._output)
        return [
            self._leaf(path, leaf)
            for path, leaf in paths
            if isinstance(leaf, (torch.Tensor, *NUMBERS)) and not self._is_left_out(path)
        ]

    def _is_left_out(self, path: Sequence[Any]) -> bool:
        names = itertools.accumulate(map(key_name, path), output_name, initial="")
        return any(name in self._leave_out for name in names)

    def _leaf(self, path: Sequence[Any], leaf: Any) -> str:
        expression, kind, value = self._root, self._kind, self._output
        for key in path:
            expression, kind = self._present(expression, kind)
            expression, kind, value = _item(expression, kind, value, key)
        expression, _ = self._present(expression, kind)
        return expression if isinstance(leaf, torch.Tensor) else number_tensor(expression, type(leaf).__name__)

    def _present(self, expression: str, kind: Kind) -> tuple[str, Kind]:
        """Unwrap an Optional, which is not None because eager returned a value at the example."""
        if kind.kind() != "OptionalType":
            return expression, kind
        name = unused(f"y{len(self.lines)}", self._taken)
        self.lines += [f"    {name} = {expression}", f"    assert {name} is not None"]
        return name, kind.getElementType()


def _matching(output: Any, kind: Kind, answer: str) -> tuple[str, Kind]:
    """Return the output, or the one part that matches eager's, for models that return more when scripted."""
    if _fits(output, kind):
        return answer, kind
    parts = list(enumerate(kind.elements())) if kind.kind() == "TupleType" else []
    fitting = [(f"{answer}[{i}]", part) for i, part in parts if _fits(output, part)]
    if len(fitting) != 1:
        raise ExportError(f"the scripted model returns {kind.annotation_str}, eager {type(output).__name__}")
    return fitting[0]


def _fits(value: Any, kind: Kind) -> bool:
    name = kind.kind()
    if name == "OptionalType":
        return value is None or _fits(value, kind.getElementType())
    if isinstance(value, dict):
        return name == "DictType" and all(_fits(item, kind.getValueType()) for item in value.values())
    if isinstance(value, list):
        return name == "ListType" and all(_fits(item, kind.getElementType()) for item in value)
    if isinstance(value, tuple):
        kinds = kind.elements() if name == "TupleType" else []
        return len(kinds) == len(value) and all(_fits(item, k) for item, k in zip(value, kinds, strict=True))
    wanted = "TensorType" if isinstance(value, torch.Tensor) else NUMBERS.get(type(value), "NoneType")
    return bool(name == wanted)


def _item(expression: str, kind: Kind, value: Any, key: Any) -> tuple[str, Kind, Any]:
    """Follow one step of a pytree path into a dict, a list, a tuple or a named tuple."""
    if isinstance(value, dict):
        return f"{expression}[{key.key!r}]", kind.getValueType(), value[key.key]
    if isinstance(value, list):
        return f"{expression}[{key.idx}]", kind.getElementType(), value[key.idx]
    index = key.idx if hasattr(key, "idx") else type(value)._fields.index(key.name)
    return f"{expression}[{index}]", kind.elements()[index], value[index]
