"""Changes to an exported program before its translation to ONNX, and checks of what has none.

A check for singular matrices is left out, because ONNX has no exceptions. If the whole program was decomposed, the
checks take and return tokens, which keep them in order and are inputs and outputs of the program.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.effects import with_effects
from torch.export.graph_signature import InputKind, OutputKind

from exporter.targets import _onnx_elementwise, _onnx_fourier, _onnx_pooling

aten: Any = torch.ops.aten
CHECK = aten._linalg_check_errors.default
ADAPTIVE_MAX = (aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
LOGARITHMS = (aten.log.default, aten.log2.default, aten.log10.default, aten.log1p.default)
SMALL_CHANGES = (
    *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.neg.default),
    *(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.maximum.default, aten.mul.Tensor),
    *(aten.where.self, aten._to_copy.default, aten.view.default, aten.squeeze.dim, aten.unsqueeze.default),
)
WITH_INFO = (aten.linalg_inv_ex.default, aten._linalg_solve_ex.default)


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Prepare a program in place, and return it. Raises ValueError for what cannot be translated."""
    for module in program.graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        _leave_out_checks(module.graph)
        _onnx_fourier.with_pairs(module.graph)
        for node in module.graph.nodes:
            if node.target in WITH_INFO:
                _require_one_result(node, "the error codes of linalg.inv_ex and linalg.solve_ex")
            elif node.target is aten.add.Tensor:
                _add_flags(node)
            elif node.target is aten.sigmoid.default and node.meta["val"].dtype == node.args[0].meta["val"].dtype:
                if _reaches_log(node):
                    node.target = _onnx_elementwise.exact_sigmoid
            elif node.target in ADAPTIVE_MAX:
                image, sizes = node.args
                if _onnx_pooling.equal_windows(image.meta["val"].shape, sizes) is None:
                    _require_one_result(node, "the indices of adaptive max pooling with windows of several sizes")
    _leave_out_tokens(program)
    return program


def _leave_out_checks(graph: fx.Graph) -> None:
    """Remove the checks where eager raises an exception."""
    for node in graph.find_nodes(op="call_function", target=CHECK):
        graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=with_effects):
        token, target, *_ = node.args
        if target is CHECK:
            for returned in list(node.users):
                returned.replace_all_uses_with(token)
                graph.erase_node(returned)
            graph.erase_node(node)


def _add_flags(node: fx.Node) -> None:
    """Make the sum of two tensors of flags what it is, because ONNX's Add takes none."""
    values = [one.meta["val"] for one in node.args[:2] if isinstance(one, fx.Node)]
    if (
        len(values) == 2
        and node.kwargs.get("alpha", 1)
        and all(getattr(value, "dtype", None) is torch.bool for value in values)
    ):
        node.target, node.kwargs = aten.logical_or.default, {}


def _reaches_log(node: fx.Node, steps: int = 4) -> bool:
    """Return whether the logarithm is taken of a result, perhaps after a sum or a limit."""
    users = [user for user in node.users if user.target in (*LOGARITHMS, *SMALL_CHANGES)]
    return any(user.target in LOGARITHMS or (steps and _reaches_log(user, steps - 1)) for user in users)


def _leave_out_tokens(program: torch.export.ExportedProgram) -> None:
    """Remove the tokens that the program returns as it takes them."""
    graph, signature = program.graph, program.graph_signature
    output = graph.output_node()
    kinds = {spec.arg.name: spec.kind for spec in signature.input_specs if hasattr(spec.arg, "name")}
    tokens = [node for node in graph.find_nodes(op="placeholder") if kinds.get(node.name) is InputKind.TOKEN]
    unused = [token for token in tokens if token.users.keys() <= {output}]
    returned: Any = output.args[0]
    pairs = list(zip(returned, signature.output_specs, strict=True))
    kept = [(node, spec) for node, spec in pairs if spec.kind is not OutputKind.TOKEN or node not in unused]
    output.args = (tuple(node for node, _ in kept),)
    for token in unused:
        graph.erase_node(token)
    names = {token.name for token in unused}
    signature.input_specs = [spec for spec in signature.input_specs if getattr(spec.arg, "name", "") not in names]
    signature.output_specs = [spec for _, spec in kept]


def _require_one_result(node: fx.Node, others: str) -> None:
    rest = [user for user in node.users if user.target is operator.getitem and user.args[1]]
    if any(one.users for one in rest):
        raise ValueError(f"{others} have no translation")
