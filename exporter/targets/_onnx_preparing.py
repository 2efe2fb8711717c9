"""Changes to an exported program before its translation to ONNX, and checks of what has none.

A check for singular matrices is left out, because ONNX has no exceptions.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

CHECK = torch.ops.aten._linalg_check_errors.default
MAXIMUM = (torch.ops.aten.adaptive_max_pool2d.default, torch.ops.aten.adaptive_max_pool3d.default)


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Prepare a program in place, and return it. Raises ValueError for what cannot be translated."""
    for module in program.graph_module.modules():
        for node in list(module.graph.nodes) if isinstance(module, fx.GraphModule) else ():
            if node.target is CHECK:  # eager raises an exception for these matrices
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
