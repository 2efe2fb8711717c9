"""Changes to an exported program before its translation to ONNX, and checks of what has none.

A check for singular matrices is left out, because ONNX has no exceptions.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from exporter.targets import _onnx_pooling

aten: Any = torch.ops.aten
CHECK = aten._linalg_check_errors.default
ADAPTIVE_MAX = (aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
WITH_INFO = (aten.linalg_inv_ex.default, aten._linalg_solve_ex.default)


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Prepare a program in place, and return it. Raises ValueError for what cannot be translated."""
    for module in program.graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=CHECK):  # where eager raises an exception
            module.graph.erase_node(node)
        for node in module.graph.nodes:
            if node.target in WITH_INFO:
                _require_one_result(node, "the error codes of linalg.inv_ex and linalg.solve_ex")
            elif node.target in ADAPTIVE_MAX:
                image, sizes = node.args
                if _onnx_pooling.equal_windows(image.meta["val"].shape, sizes) is None:
                    _require_one_result(node, "the indices of adaptive max pooling with windows of several sizes")
    return program


def _require_one_result(node: fx.Node, others: str) -> None:
    rest = [user for user in node.users if user.target is operator.getitem and user.args[1]]
    if any(CHECK not in reader.args for one in rest for reader in one.users):
        raise ValueError(f"{others} have no translation")
