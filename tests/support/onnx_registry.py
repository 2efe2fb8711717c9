"""Fills torch.onnx's registry when it is imported, so that jobs forked afterwards have it."""

from __future__ import annotations

from torch.onnx._internal.exporter._registration import ONNXRegistry

ONNXRegistry.from_torchlib()
