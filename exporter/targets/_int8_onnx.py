"""int8 quantization of ONNX models, by onnxruntime."""

from __future__ import annotations

import ast
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core.errors import ExportError
from exporter.model import layer_names
from exporter.targets import _int8

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

SCOPES = "pkg.torch.onnx.name_scopes"


def quantize(
    path: Path,
    names: Sequence[str],
    make_examples: Callable[[], Sequence[Tensors]],
    narrow: bool = False,
    kept: Sequence[str] = (),
) -> str:
    """Quantize the model at `path` in place with onnxruntime.quantization; return "static" or "dynamic".

    The file must contain the weights. A model with convolutions is quantized statically, in QDQ form, with activations
    calibrated with the examples; any other is quantized dynamically, without them. With `narrow`, weights take 7 bits.
    The layers in `kept` stay as they are.
    """
    import onnx as library
    from onnxruntime import quantization as ort

    model = library.load(str(path))
    _int8.require_float32(library.TensorProto.DataType.Name(one.data_type).lower() for one in model.graph.initializer)
    del model.graph.value_info[:]  # folding has made some shapes wrong, and shape inference stops at them
    _transpose_shared_weights(model.graph)
    convolves = any(node.op_type == "Conv" for node in model.graph.node)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    logging.getLogger().setLevel(logging.ERROR)  # it logs advice to preprocess, on the root logger
    made = path.with_name(f"{path.name}.int8.onnx")  # begins with the artifact's name, as what a failed export leaves
    left = [node.name for node in model.graph.node if kept and layer_names.is_kept(_module_of(node), kept)]
    if kept and not left:
        raise ExportError(
            "layers can be kept in float only by the names of modules, which this ONNX model lacks",
            "choose compile@int8",
        )
    left += [f"{name}_MatMul" for name in left]  # what onnxruntime calls the product of a Gemm node
    common: dict[str, Any] = {
        "per_channel": True,
        "reduce_range": narrow,
        "weight_type": ort.QuantType.QInt8,
        "nodes_to_exclude": left,
    }
    try:
        if convolves:
            reader = _Reader(names, _accepted(model.graph, make_examples()))
            ort.quantize_static(model, str(made), reader, activation_type=ort.QuantType.QUInt8, **common)
        else:
            ort.quantize_dynamic(model, str(made), **common)
        quantized = library.load(str(made))
    finally:
        made.unlink(missing_ok=True)
    if len(list(_graphs(quantized.graph))) > 1:
        quantized = _in_order(quantized)
    library.helper.set_model_props(quantized, properties)
    library.save(quantized, str(path))
    return "static" if convolves else "dynamic"


def _transpose_shared_weights(graph: Any) -> None:
    """Let Gemm nodes use a transposed copy of a weight that other nodes use too.

    onnxruntime transposes the weight itself, once for each Gemm: a layer that is called twice would have its weight as
    it was, and an embedding that shares its weight with a layer would have a transposed one.
    """
    from onnx import numpy_helper

    taken = {name for part in _graphs(graph) for node in part.node for name in (*node.input, *node.output)}
    for owner in _graphs(graph):
        parts = list(_graphs(owner))
        uses = Counter(name for part in parts for node in part.node for name in node.input)
        uses.update(value.name for part in parts for value in part.output)
        weights = {one.name: one for one in owner.initializer if uses[one.name] > 1}
        made: dict[str, str] = {}
        for node in (node for part in parts for node in part.node if node.op_type == "Gemm"):
            flags = [one for one in node.attribute if one.name == "transB" and one.i]
            name = node.input[1]
            if not flags or name not in weights:
                continue
            if name not in made:
                made[name] = f"{name}_transposed"
                while made[name] in taken:
                    made[name] += "_"
                owner.initializer.append(numpy_helper.from_array(numpy_helper.to_array(weights[name]).T, made[name]))
            node.input[1], flags[0].i = made[name], 0
            uses[name] -= 1
            if not uses[name]:
                owner.initializer.remove(weights[name])


def _in_order(model: Any) -> Any:
    """Return the model with its nodes in topological order.

    The quantizer's own order may have a loop or a condition before a node whose output only its subgraph uses.
    """
    import onnx_ir

    sorted_model = onnx_ir.from_proto(model)
    sorted_model.graph.sort()
    return onnx_ir.to_proto(sorted_model)


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those of its control flow."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for part in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(part)


def _module_of(node: Any) -> str:
    """Return the path of the module that a node comes from, which torch.onnx records."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    found = [scope for scope in ast.literal_eval(scopes) if scope]
    return str(found[-2]).removeprefix("model.") if len(found) > 1 else ""


def _accepted(graph: Any, examples: Sequence[Tensors]) -> list[Tensors]:
    """Return the examples whose sizes the graph's inputs allow, which may be fewer than promised."""
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.input]

    def fits(tensor: torch.Tensor, shape: list[int]) -> bool:
        return all(dim in (0, size) for dim, size in zip(shape, tensor.shape, strict=True))  # 0: dynamic

    return [one for one in examples if all(map(fits, one, shapes))]


class _Reader:
    """The examples as a CalibrationDataReader of onnxruntime."""

    def __init__(self, names: Sequence[str], examples: Sequence[Tensors]) -> None:
        self._feeds = iter([dict(zip(names, map(_array, inputs), strict=True)) for inputs in examples])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
