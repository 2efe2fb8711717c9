"""Changes to an exported program for which no translation to ONNX is at fault, but what torch or ONNX lacks.

Attention without a batch or without heads has no translation, and a check for singular matrices has none to be had.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
CHECK = torch.ops.aten._linalg_check_errors.default
MAXIMUM = (torch.ops.aten.adaptive_max_pool2d.default, torch.ops.aten.adaptive_max_pool3d.default)
UNSQUEEZE, SELECT = torch.ops.aten.unsqueeze.default, torch.ops.aten.select.int


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Prepare a program in place, and return it. Raises ValueError for what cannot be translated."""
    for module in program.graph_module.modules():
        for node in list(module.graph.nodes) if isinstance(module, fx.GraphModule) else ():
            if node.target is ATTENTION:
                _widen(node, program.graph_signature)
            elif node.target is CHECK:  # eager raises an exception for these matrices
                node.graph.erase_node(node)
            elif node.target in MAXIMUM:
                _require_one_result(node)
    return program


def _require_one_result(node: fx.Node) -> None:
    before = node.args[0].meta["val"].shape[-len(node.args[1]) :]  # type: ignore[union-attr,arg-type]
    even = all(isinstance(one, int) for one in before) and not any(
        a % b
        for a, b in zip(before, node.args[1], strict=True)  # type: ignore[arg-type]
    )
    if not even and any(user.target is operator.getitem and user.args[1] and user.users for user in node.users):
        raise ValueError("the indices of adaptive max pooling with windows of several sizes have no translation")


def _widen(node: fx.Node, signature: ExportGraphSignature) -> None:
    """Add leading dimensions of size 1 to queries, keys and values without four, and take them from the result."""
    operands = [one for one in node.args[:3] if isinstance(one, fx.Node)]
    ranks = {one.meta["val"].dim() for one in operands}
    if len(ranks) > 1 or (missing := 4 - ranks.pop()) <= 0:
        return
    users = list(node.users)

    def call(target: torch._ops.OpOverload, source: fx.Node, *numbers: int) -> fx.Node:
        made = node.graph.call_function(target, (source, *numbers))
        made.meta = {**node.meta, "tensor_meta": None}
        with source.meta["val"].fake_mode:
            made.meta["val"] = target(source.meta["val"], *numbers)
        return made

    for at, operand in enumerate(operands):
        wide = operand
        with node.graph.inserting_before(node):
            for _ in range(missing):
                wide = call(UNSQUEEZE, wide, 0)
        node.update_arg(at, wide)
    result = node.meta["val"]
    with result.fake_mode:
        wide_result = result[(None,) * missing]
    node.meta = {**node.meta, "val": wide_result, "tensor_meta": None}
    after = node
    for _ in range(missing):
        with node.graph.inserting_after(after):
            after = call(SELECT, after, 0, 0)
    for user in users:
        user.replace_input_with(node, after)
    signature.replace_all_uses(node.name, after.name)
