"""Two ONNX models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.bundle.differences._finding import Finding
from exporter.bundle.differences._numbers import apart
from exporter.targets.onnx import PROPERTY


def compare(old: Path, new: Path) -> Iterator[Finding]:
    """Of two ONNX models with their weights, wherever these lie."""
    import onnx
    from google.protobuf.message import DecodeError

    one, other = (path.with_name(path.name.removesuffix(".data")) for path in (old, new))
    try:
        before, after = onnx.load(str(one)), onnx.load(str(other))
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        yield "differs", f"it cannot be read: {error}"
        return
    weights, twins = _strip(before), _strip(after)
    if before.SerializeToString(deterministic=True) != after.SerializeToString(deterministic=True):
        yield "differs", "the graph"
    elif any(tensor.dims != twin.dims for tensor, twin in zip(weights, twins, strict=True)):
        yield "differs", "shapes of weights"
    else:
        for tensor, twin in zip(weights, twins, strict=True):
            if tensor != twin:
                arrays = map(onnx.numpy_helper.to_array, (tensor, twin))
                yield "numbers", f"{twin.name or 'a constant'}: {apart(*arrays)}"
    if old.suffix == ".onnx":
        yield "known places", "places in the source, for tracebacks"


def _strip(model: Any) -> list[Any]:
    """Take out of a model its weights, which are returned, and the translator's notes."""
    import onnx

    weights: list[Any] = []
    notes = [entry for entry in model.metadata_props if entry.key != PROPERTY]
    for entry in notes:
        model.metadata_props.remove(entry)
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        message = waiting.pop()
        for holder in (message, *message.node, *message.value_info, *getattr(message, "input", ())):
            if hasattr(holder, "metadata_props"):
                holder.ClearField("metadata_props")
            if hasattr(holder, "doc_string"):
                holder.ClearField("doc_string")
        tensors = [*getattr(message, "initializer", ())]
        for attribute in (attribute for node in message.node for attribute in node.attribute):
            tensors += [attribute.t] if attribute.HasField("t") else []
            waiting += [attribute.g] if attribute.HasField("g") else []
            waiting += attribute.graphs
        for tensor in tensors:
            kept = onnx.TensorProto()
            kept.CopyFrom(tensor)
            weights.append(kept)
            name, kind = tensor.name, tensor.data_type
            tensor.Clear()
            tensor.name, tensor.data_type = name, kind
    return weights
