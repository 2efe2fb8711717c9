"""Decomposition of operators that have no ONNX translation, one by one instead of in the whole program.

torch.onnx.export calls `ExportedProgram.run_decompositions`, which runs every operator again to decompose a few: for
BERT at 36 layers, half of the translation's time. Here only the operators in torch's table are traced, each alone.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._export import utils
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from exporter.model import folding, writes
from exporter.targets import _onnx_complex, _onnx_numbers, _onnx_preparing, _onnx_rewriting

Table = Mapping[Any, Callable[..., Any]]
# Composite operators whose result never shares memory with an operand, though their schemas do not say so.
FRESH = frozenset((
    *folding.CONVOLUTIONS, torch.ops.aten.linear.default, torch.ops.aten.matmul.default,
    torch.ops.aten.native_batch_norm.default,
))  # fmt: skip
HELD = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class NeedsWhole(Exception):
    """The whole program has to be traced again."""


def one_by_one() -> contextlib.AbstractContextManager[None]:
    """Let torch.onnx.export decompose operators alone where the result is the same."""
    return _onnx_rewriting.replaced(_decomposition)


def _decomposition() -> tuple[Any, str, Any]:
    from torch.onnx._internal.exporter import _decomp, _fx_passes

    usual: Any = _fx_passes.decompose_with_registry
    implemented, table_of = _decomp.get_onnx_implemented_overloads, _decomp.create_onnx_friendly_decomposition_table

    def decompose(program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        return _onnx_numbers.exact(_onnx_preparing.prepared(with_table(program, registry)))

    def with_table(program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        table = table_of(set(implemented(registry)))
        if _onnx_complex.has(program):
            with contextlib.suppress(Exception):
                return _onnx_complex.in_pairs(program, table)
        with contextlib.suppress(Exception):  # tracing may raise anything; if it is the model's fault, torch says so
            made = decomposed(program, table)
            if all(map(registry.is_registered, _operators(made) - _operators(program))):
                made.graph_module.meta[_onnx_rewriting.VALUES_KNOWN] = True
                return made
        whole: torch.export.ExportedProgram = usual(program, registry)
        return whole

    return _fx_passes, "decompose_with_registry", decompose


def _operators(program: torch.export.ExportedProgram) -> set[Any]:
    return {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}


def decomposed(program: torch.export.ExportedProgram, table: Table) -> torch.export.ExportedProgram:
    """Return a program without the operators in the table, nor those that torch never keeps whole.

    The given program is not changed.
    Raises an exception of any type if that takes more than replacing operators by others: for control flow, sizes that
    depend on values, writes to tensors that are used again, and decompositions that write to tensors.
    """
    _require_plain(program)
    module, _, _ = folding.copied(program)
    graph = module.graph
    _replace_all(graph, table)  # first, because what it replaces may hide that a result is a view of an operand
    _require_separate_writes(graph)
    for node in graph.nodes:
        if node.op == "call_function" and writes.is_write(node):
            _make_functional(node)
    _replace_all(graph, table)
    graph.eliminate_dead_code()
    return folding.rebuilt(program, module, dict(program.state_dict))


def _replace_all(graph: fx.Graph, table: Table) -> None:
    """Replace the operators that do not write by their decompositions."""
    sizes: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.reshape.default:
            _infer(node)
        elif node.op == "call_function" and (node.target in table or _is_dissolved(node.target)):
            if not writes.is_write(node):
                _replace(node, table, sizes)
        elif isinstance(size := node.meta.get("val"), torch.SymInt):
            sizes.setdefault(size.node.expr, node)


def _require_plain(program: torch.export.ExportedProgram) -> None:
    """Raise NeedsWhole unless the program is one graph of operators without effects besides their results."""
    signature = program.graph_signature
    if any(spec.kind not in HELD for spec in signature.input_specs):
        raise NeedsWhole
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise NeedsWhole
    for node in program.graph.nodes:
        if node.op == "call_function":
            builtin = node.target is operator.getitem or isinstance(node.meta.get("val"), (int, torch.SymInt))
            if not builtin and not isinstance(node.target, torch._ops.OpOverload):
                raise NeedsWhole
        if node.op == "get_attr" or "unbacked_bindings" in node.meta:
            raise NeedsWhole


def _require_separate_writes(graph: fx.Graph) -> None:
    """Raise NeedsWhole unless what an operator writes to is an own result of the graph that only this operator uses."""
    for family in writes.families(graph):
        if not writes.is_plain([node for node in family if not _has_own_items(node)]):
            raise NeedsWhole
        for node in family:
            if node.op == "placeholder" or (_is_composite(node.target) and not _is_known(node)):
                raise NeedsWhole(node)


def _has_own_items(node: fx.Node) -> bool:
    """Return whether the result is several tensors that share no memory, such as a batch norm's."""
    several = isinstance(node.meta.get("val"), (tuple, list))
    return several and (node.target in FRESH or not (_is_composite(node.target) or _is_known(node)))


def _is_known(node: fx.Node) -> bool:
    """Return whether it is known which operands the result of a composite operator shares memory with."""
    return node.target in FRESH or any(True for _ in writes.aliased(node))


def _is_composite(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and utils._is_cia_op(target)


def _is_dissolved(target: Any) -> bool:
    """Return whether torch replaces a composite operator because it may return a view or draw random numbers."""
    return _is_composite(target) and not utils._is_preservable_cia_op(target)


def _make_functional(node: fx.Node) -> None:
    """Let an operator such as `aten.relu_` return what it writes to its first argument."""
    write: Any = node.target
    space, _, name = write._schema.name.partition("::")
    if not name.endswith("_") or name.endswith("__"):
        raise NeedsWhole(write)
    functional = getattr(getattr(getattr(torch.ops, space), name[:-1]), write._overloadname)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    with node.meta["val"].fake_mode:
        promoted = functional(*args, **kwargs).dtype
    if promoted != node.meta["val"].dtype:
        raise NeedsWhole(write)
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

    known_to = itertools.chain(pytree.tree_leaves(values), pytree.tree_leaves(node.meta["val"]))
    mode = next(one.fake_mode for one in known_to if hasattr(one, "fake_mode"))
    with mode, _unconditional(mode.shape_env):
        inner = make_fx(call, decomposition_table=dict(table))(*values)
    placeholders = [one for one in inner.graph.nodes if one.op == "placeholder"]
    replaced: dict[fx.Node, Any] = dict(zip(placeholders, given, strict=True))
    with node.graph.inserting_before(node):
        for one in inner.graph.nodes:
            if one.op == "call_function":
                if writes.is_write(one) or _learns(one):
                    raise NeedsWhole(one.target)
                size = one.meta.get("val")
                known = sizes.get(size.node.expr) if isinstance(size, torch.SymInt) else None
                if known is None and one.target is torch.ops.aten.sym_numel.default:
                    known = _numel(replaced[one.args[0]], sizes)
                elif known is None:
                    known = node.graph.node_copy(one, replaced.__getitem__)
                    known.meta = {**node.meta, "tensor_meta": None, **one.meta}
                if isinstance(size, torch.SymInt):
                    sizes[size.node.expr] = known
                replaced[one] = known
            elif one.op == "get_attr":
                raise NeedsWhole
    result: Any = fx.map_arg(inner.graph.output_node().args[0], replaced.__getitem__)
    if any(user.op == "output" for user in node.users) and any(one.op == "placeholder" for one in _nodes(result)):
        raise NeedsWhole  # an output that is an input
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise NeedsWhole
            user.replace_all_uses_with(result[user.args[1]])
            node.graph.erase_node(user)
    node.graph.erase_node(node)
    for one in replaced.values():  # so that they do not count as users of a tensor that is written to
        if isinstance(one, fx.Node) and one.target is operator.getitem and not one.users:
            node.graph.erase_node(one)


@contextlib.contextmanager
def _unconditional(sizes: Any) -> Iterator[None]:
    """Raise NeedsWhole instead of adding a condition on sizes, which would hold for the whole program.

    The condition of `aten.gru_cell` fixes a batch to the example's. `sizes` is the ShapeEnv, or None if all are fixed.
    """

    def refuse(condition: Any, *_: Any) -> None:
        raise NeedsWhole(f"a guard: {condition}")

    if sizes is None:
        yield
        return
    with mock.patch.object(sizes, "_check_frozen", refuse), mock.patch.object(sizes, "frozen", True):
        yield


def _is_mean(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.adaptive_avg_pool2d.default and bool(node.args[1] == [1, 1])


def _mean(x: torch.Tensor, _: Any) -> torch.Tensor:
    """Return what adaptive_avg_pool2d does for one pixel; its decomposition writes strides if x is channels-last."""
    return x.mean((-2, -1), keepdim=True)


def _learns(node: fx.Node) -> bool:
    """Return whether an operator writes running statistics, which its schema does not say."""
    return node.target is torch.ops.aten.native_batch_norm.default and bool(node.args[folding.TRAINING])


def _numel(tensor: fx.Node, sizes: dict[Any, fx.Node]) -> fx.Node:
    """Return the number of a tensor's elements as a product of its sizes, at the graph's insertion point.

    `aten.sym_numel` has no translation.
    """

    def call(target: Any, args: tuple[Any, ...], size: Any) -> fx.Node:
        node = tensor.graph.call_function(target, args)
        node.meta = {name: value for name, value in tensor.meta.items() if name != "tensor_meta"} | {"val": size}
        return node

    product: Any = 1
    count: Any = 1
    for axis, size in enumerate(tensor.meta["val"].shape):
        factor: Any = size
        if isinstance(size, torch.SymInt):
            factor = sizes.get(size.node.expr) or call(torch.ops.aten.sym_size.int, (tensor, axis), size)
            sizes[size.node.expr] = factor
        count = count * size
        both_known = isinstance(product, int) and isinstance(factor, int)
        product = product * factor if both_known else call(operator.mul, (product, factor), count)
    return product  # type: ignore[no-any-return]


def _nodes(result: Any) -> list[fx.Node]:
    return [one for one in pytree.tree_leaves(result) if isinstance(one, fx.Node)]
