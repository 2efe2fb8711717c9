"""Keeps int8 weights of ONNX models in int8 when onnxruntime loads them, with arithmetic in float32.

onnxruntime computes a Cast of a constant when it loads the model, so that the weight would be in memory in float32. It
leaves a DequantizeLinear. One with the scales of the channels before a product would become a product in int8, which
rounds the activations too; here the scale is 1, and the model applies those of the channels to the product.
"""

from __future__ import annotations

from typing import Any


def keep(graph: Any) -> int:
    """Replace each Cast of an int8 weight to float32 by a DequantizeLinear with the scale 1; return their number."""
    import numpy as np
    import onnx_ir as ir

    casts = [node for node in graph.all_nodes() if _is_cast(node) and _is_weight(graph, node.inputs[0])]
    if not casts:
        return 0
    one = ir.Value(name="one_of_stored_weights", const_value=ir.tensor(np.float32(1), name="one_of_stored_weights"))
    graph.register_initializer(one)
    for node in casts:
        made = ir.node("DequantizeLinear", [node.inputs[0], one], name=node.name)
        made.metadata_props.update(node.metadata_props)
        old, new = node.outputs[0], made.outputs[0]
        new.name, new.shape, new.type = old.name, old.shape, old.type
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], [made], [old], [new])
    return len(casts)


def _is_cast(node: Any) -> bool:
    """Return whether a node casts to float32."""
    import onnx_ir as ir

    return bool(node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT)


def _is_weight(graph: Any, value: Any) -> bool:
    import onnx_ir as ir

    constant = graph.initializers.get(value.name)
    if constant is None or constant.const_value is None:
        return False
    return bool(constant.const_value.dtype == ir.DataType.INT8 and len(constant.const_value.shape) == 2)
