"""Split an ONNX model into computation and weights, to compare two builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exporter.core.errors import ArtifactError
from exporter.targets import _ort_level

PROPERTY = "exporter.contract"
OURS = (PROPERTY, _ort_level.PROPERTY, _ort_level.SESSION)  # the metadata properties that are not notes


def parts(path: Path) -> tuple[bytes, list[tuple[str, Any]]]:
    """Return the serialized model without weights and notes, and the weights, embedded or external.

    Raise ArtifactError if the file cannot be read.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path))
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ArtifactError(f"it cannot be read: {error}") from error
    weights = [(weight.name, onnx.numpy_helper.to_array(weight)) for weight in _strip(model)]
    return model.SerializeToString(deterministic=True), weights


def _strip(model: Any) -> list[Any]:
    """Remove the weights and the translator's notes from the model; return the weights."""
    import onnx

    weights: list[Any] = []
    notes = [entry for entry in model.metadata_props if entry.key not in OURS]
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
