"""int8: the weights of a model, and where it pays its activations, as integers; each route in its own library's way."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import environment
from exporter.core.errors import ExportError, MissingDependency

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

COMPILED = ("quantized_decomposed", "torchao")  # namespaces that inductor has kernels of its own for


def dynamic(module: torch.nn.Module) -> tuple[torch.nn.Module, str]:
    """A copy whose Linear layers hold int8 weights and quantize their inputs at each call; and how many they are.

    By torch.ao.quantization.quantize_dynamic, on the CPU. ExportError where there is no such layer.
    """
    import torch

    if next(module.parameters(), torch.empty(0)).device.type != "cpu":
        raise ExportError("torch quantizes dynamically on the CPU alone", "choose compile@int8, or trace@fp16")
    found = sum(type(inner) is torch.nn.Linear for inner in module.modules())
    if not found:
        raise ExportError("there is no Linear layer to quantize", "choose compile@int8 or onnx@int8")

    class Linear(torch.ao.nn.quantized.dynamic.Linear):
        """Its input has the name that it has in torch.nn.Linear, for callers who give it by name."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return output

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecation: its successor makes no TorchScript
        quantized = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(module), {torch.nn.Linear}, torch.qint8, {torch.nn.Linear: Linear}, inplace=True
        )
    return quantized, f"{found} linear layers in int8"


def pt2e(graph: torch.fx.GraphModule, examples: Sequence[Tensors], narrow: bool = False) -> torch.nn.Module:
    """An exported program's module quantized for inductor on x86, to be exported again.

    The range of each layer's inputs is what `examples` show: finding it at each call is no nearer, and slower.
    With `narrow` inputs take 7 bits: a CPU without VNNI adds two products in 16, which 8 would overflow.
    ValueError or IndexError where it needs a graph that was exported strictly.

    By torchao's PT2E. MissingDependency without torchao.
    """
    import torch

    _require_torchao()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    graph.graph.eliminate_dead_code()  # a layer that nobody reads has no output that could be quantized
    graph.recompile()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=False, reduce_range=narrow))
    with torch.no_grad():
        prepared = prepare_pt2e(graph, quantizer)
        for inputs in examples:
            prepared(*inputs)
        converted = convert_pt2e(prepared)
    if not any("dequantize" in str(node.target) for node in converted.graph.nodes):
        raise ExportError("torchao found nothing to quantize in the exported graph", "choose bf16, or onnx@int8")
    return _flat(converted)


def weights(module: torch.nn.Module) -> torch.nn.Module:
    """`module` itself, the weights of its Linear layers in int8, which are unpacked at each call; for a GPU.

    By torchao's weight-only quantization. ExportError where there is no such layer, MissingDependency without torchao.
    """
    import torch

    _require_torchao()
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    if not any(type(inner) is torch.nn.Linear for inner in module.modules()):
        raise ExportError("there is no Linear layer to quantize", "choose bf16 or fp16 on a GPU")
    quantize_(module, Int8WeightOnlyConfig(set_inductor_config=False))  # which would allow TF32 everywhere
    return module


def _require_torchao() -> None:
    if not environment.version("torchao"):
        raise MissingDependency(
            "torchao is not installed, which int8 of the target compile needs", "pip install torchao"
        )


def _flat(graph: torch.fx.GraphModule) -> torch.nn.Module:
    """A module that takes its tensors as a flat module does."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = graph

        def forward(self, *tensors: torch.Tensor) -> Tensors:
            return tuple(self.inner(*tensors))

    return Flat()


def onnx(path: Path, names: Sequence[str], examples: Sequence[Tensors]) -> str:
    """Quantize the model at `path`, which holds its weights itself, in place; returns how.

    By onnxruntime.quantization: with convolutions in QDQ form, inputs by what `examples` show; else dynamically.
    """
    import onnx as library
    from onnxruntime import quantization as ort

    model = library.load(str(path))
    del model.graph.value_info[:]  # shapes that folding has made untrue stop its own inference
    convolves = any(node.op_type == "Conv" for node in model.graph.node)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    logging.getLogger().setLevel(logging.ERROR)  # it advises to preprocess, on the root logger
    made = path.with_name(f"int8-{path.name}")
    common: dict[str, Any] = {"per_channel": True, "weight_type": ort.QuantType.QInt8}
    if convolves:
        ort.quantize_static(model, str(made), _Reader(names, examples), activation_type=ort.QuantType.QUInt8, **common)
    else:
        ort.quantize_dynamic(model, str(made), **common)
    quantized = library.load(str(made))
    library.helper.set_model_props(quantized, properties)
    library.save(quantized, str(path))
    made.unlink()
    return "static" if convolves else "dynamic"


class _Reader:
    """Examples as onnxruntime's calibration reads them."""

    def __init__(self, names: Sequence[str], examples: Sequence[Tensors]) -> None:
        self._feeds = iter([dict(zip(names, map(_array, inputs), strict=True)) for inputs in examples])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
