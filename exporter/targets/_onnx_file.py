"""Write an ONNX model to one file, weight by weight.

`onnx.save` holds all weights in memory three times: as tensors, in the message, and in its bytes. Here the message is
made without weights, and they are written into their places in its graph one after the other. `onnx.checker` also gets
the message without weights, each of which is an input for it.

Source: https://protobuf.dev/programming-guides/encoding, and onnx.proto for the numbers of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from exporter.core.errors import ExportError

if TYPE_CHECKING:
    import onnx

LARGE = 1024  # bytes; smaller tensors stay in the message
LIMIT = (1 << 31) - (1 << 20)  # bytes, less what the lengths of the weights take
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto


def save(model: Any, path: Path) -> None:
    """Write an onnx_ir model to one file; its large weights are removed from it.

    Before anything is written, raises onnx.checker.ValidationError if the model is not valid, and ExportError if the
    file would be larger than protobuf's limit.
    """
    import onnx
    import onnx_ir as ir

    weights: dict[str, Any] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= LARGE and tensor.dtype != ir.DataType.STRING:
            weights[name] = tensor
            value.const_value = ir.ExternalTensor("", None, None, tensor.dtype, shape=tensor.shape, name=name)
    message = ir.serde.serialize_model(model)
    if (size := message.ByteSize() + sum(weight.nbytes for weight in weights.values())) >= LIMIT:
        raise ExportError(
            f"the ONNX model takes {size / 1e9:.1f} GB without companion files, and protobuf's limit is 2 GB",
            "export to compile or trace, or make large constants in the model's code parameters or buffers",
        )
    onnx.checker.check_model(_without_weights(message, weights))
    with path.open("wb") as file:
        _write(file, message, weights)


def _without_weights(message: onnx.ModelProto, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a copy of the message in which the weights are inputs."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(message)
    graph = copy.graph
    taken = {value.name for value in graph.input}
    for one in message.graph.initializer:
        if one.name in weights and one.name not in taken:
            graph.input.append(onnx.helper.make_tensor_value_info(one.name, one.data_type, one.dims))
    kept = [one for one in message.graph.initializer if one.name not in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copy


def _write(file: BinaryIO, message: onnx.ModelProto, weights: Mapping[str, Any]) -> None:
    """Write the fields of the message, and its graph with its initializers after its other fields."""
    pieces = []  # the bytes of each initializer without its weight, the size of the weight in bytes, and the weight
    for one in message.graph.initializer:
        weight = weights.get(one.name)
        size = 0 if weight is None else weight.nbytes
        if weight is not None:
            one.ClearField("external_data")
            one.ClearField("data_location")
        described = one.SerializeToString() + (b"" if weight is None else _start(RAW_DATA, size))
        pieces.append((_start(INITIALIZER, len(described) + size) + described, size, weight))
    del message.graph.initializer[:]
    graph = message.graph.SerializeToString()
    message.ClearField("graph")
    total = len(graph) + sum(len(start) + size for start, size, _ in pieces)
    file.write(message.SerializeToString() + _start(GRAPH, total) + graph)
    for start, size, weight in pieces:
        file.write(start)
        if weight is not None and file.write(weight.tobytes()) != size:
            raise AssertionError(f"{weight.name} has another size than its type")


def _start(field: int, size: int) -> bytes:
    """Return the tag of a field with a length, and the length."""
    found = bytearray([field << 3 | 2])
    while size >= 128:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes((*found, size))
