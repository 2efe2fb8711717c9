"""Decomposition of operators that have no ONNX translation, one by one instead of in the whole program.

torch.onnx.export calls `ExportedProgram.run_decompositions`, which runs every operator again to decompose a few: for
BERT at 36 layers, half of the translation's time. Here only the operators in torch's table are traced, each alone.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from exporter.model import folding, writes

Table = Mapping[Any, Callable[..., Any]]
HELD = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class _Whole(Exception):
    """The whole program has to be traced again."""


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Let torch.onnx.export decompose operators alone where the result is the same."""
    try:
        from torch.onnx._internal.exporter import _decomp, _fx_passes

        usual: Any = _fx_passes.decompose_with_registry
        implemented, table_of = _decomp.get_onnx_implemented_overloads, _decomp.create_onnx_friendly_decomposition_table
    except (ImportError, AttributeError):  # another version of torch
        yield
        return

    def decompose(program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        try:
            return decomposed(program, table_of(set(implemented(registry))))
        except Exception:  # tracing may raise anything; if it is the model's fault, torch says so
            made: torch.export.ExportedProgram = usual(program, registry)
            return made

    with mock.patch.object(_fx_passes, "decompose_with_registry", decompose):
        yield


def decomposed(program: torch.export.ExportedProgram, table: Table) -> torch.export.ExportedProgram:
    """Return a program without the operators in the table, nor those that torch never keeps whole.

    The given program is not changed.
    Raises an exception of any type if that takes more than replacing operators by others: for control flow, sizes that
    depend on values, writes to tensors that are used again, and decompositions that write to tensors.
    """
    _require_plain(program)
    module, _, _ = folding.copied(program)
    for node in list(module.graph.nodes):
        if node.op == "call_function" and writes.is_write(node):
            _make_functional(node)
    sizes: dict[Any, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.reshape.default:
            _infer(node)
        elif node.op == "call_function" and (node.target in table or _is_dissolved(node.target)):
            _replace(node, table, sizes)
        elif isinstance(size := node.meta.get("val"), torch.SymInt):
            sizes.setdefault(size.node.expr, node)
    module.graph.eliminate_dead_code()
    return folding.rebuilt(program, module, dict(program.state_dict))


def _require_plain(program: torch.export.ExportedProgram) -> None:
    """Raise _Whole unless the program is one graph of operators without effects besides their results."""
    signature = program.graph_signature
    if any(spec.kind not in HELD for spec in signature.input_specs):
        raise _Whole
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise _Whole
    held = {node for node in program.graph.nodes if node.op in ("placeholder", "get_attr")}
    for family in writes.families(program.graph):
        if not writes.is_plain(family) or held & {*family}:
            raise _Whole
    for node in program.graph.nodes:
        if node.op == "call_function":
            builtin = node.target is operator.getitem or isinstance(node.meta.get("val"), (int, torch.SymInt))
            if not builtin and not isinstance(node.target, torch._ops.OpOverload):
                raise _Whole
        if node.op == "get_attr" or "unbacked_bindings" in node.meta:
            raise _Whole


def _is_dissolved(target: Any) -> bool:
    """Return whether torch defines an operator by others, and does not keep it whole, because of views or chance."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return _is_cia_op(target) and not _is_preservable_cia_op(target)


def _make_functional(node: fx.Node) -> None:
    """Let an operator such as `aten.relu_` return what it writes to its first argument, which nothing uses again."""
    write: Any = node.target
    space, _, name = write._schema.name.partition("::")
    if not name.endswith("_") or name.endswith("__"):
        raise _Whole(write)
    functional = getattr(getattr(getattr(torch.ops, space), name[:-1]), write._overloadname)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    with node.meta["val"].fake_mode:
        promoted = functional(*args, **kwargs).dtype
    if promoted != node.meta["val"].dtype:
        raise _Whole(write)
    node.target = functional


def _infer(node: fx.Node) -> None:
    """Write the sizes that are known into the shape of an `aten.reshape`, in place of -1."""
    given: Any = node.args
    tensor, shape = given
    sizes = zip(shape, node.meta["val"].shape, strict=True)
    node.args = (tensor, [size if isinstance(size, int) else asked for asked, size in sizes])


def _replace(node: fx.Node, table: Table, sizes: dict[Any, fx.Node]) -> None:
    """Replace an operator by its decomposition; the sizes that earlier nodes compute are not computed again."""
    given = node.all_input_nodes
    values = [one.meta["val"] for one in given]
    target: Any = _mean if _is_mean(node) else node.target

    def call(*operands: Any) -> Any:
        by_node = dict(zip(given, operands, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), by_node.__getitem__)
        return target(*args, **kwargs)

    mode = next(one.fake_mode for one in pytree.tree_leaves(values) if hasattr(one, "fake_mode"))
    with mode:
        inner = make_fx(call, decomposition_table=dict(table))(*values)
    placeholders = [one for one in inner.graph.nodes if one.op == "placeholder"]
    replaced: dict[fx.Node, Any] = dict(zip(placeholders, given, strict=True))
    with node.graph.inserting_before(node):
        for one in inner.graph.nodes:
            if one.op == "call_function":
                if writes.is_write(one) or _is_unfit(one):
                    raise _Whole(one.target)
                size = one.meta.get("val")
                known = sizes.get(size.node.expr) if isinstance(size, torch.SymInt) else None
                if known is None:
                    known = node.graph.node_copy(one, replaced.__getitem__)
                    known.meta = {**node.meta, "tensor_meta": None, **one.meta}
                if isinstance(size, torch.SymInt):
                    sizes[size.node.expr] = known
                replaced[one] = known
            elif one.op == "get_attr":
                raise _Whole
    result: Any = fx.map_arg(inner.graph.output_node().args[0], replaced.__getitem__)
    if any(user.op == "output" for user in node.users) and any(one.op == "placeholder" for one in _nodes(result)):
        raise _Whole  # an output that is an input
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise _Whole
            user.replace_all_uses_with(result[user.args[1]])
            node.graph.erase_node(user)
    node.graph.erase_node(node)


def _is_mean(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.adaptive_avg_pool2d.default and bool(node.args[1] == [1, 1])


def _mean(x: torch.Tensor, _: Any) -> torch.Tensor:
    """Return what adaptive_avg_pool2d does for one pixel; its decomposition writes strides if x is channels-last."""
    return x.mean((-2, -1), keepdim=True)


def _is_unfit(node: fx.Node) -> bool:
    """Return whether an operator has no translation, or writes running statistics, which its schema does not say."""
    batch_norm = node.target is torch.ops.aten.native_batch_norm.default
    return node.target is torch.ops.aten.sym_numel.default or (batch_norm and bool(node.args[folding.TRAINING]))


def _nodes(result: Any) -> list[fx.Node]:
    return [one for one in pytree.tree_leaves(result) if isinstance(one, fx.Node)]
