"""int8 quantization of weights and, where that is faster, activations. Each target uses its own library."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from exporter.core import environment
from exporter.core.errors import ExportError, MissingDependency
from exporter.model import layer_names
from exporter.targets import _int8_sizes

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors
    from exporter.targets import Options

NARROW_INPUTS, NARROW_WEIGHTS = (
    f"{what} of 7 bits, so that sums do not saturate on x86 CPUs without VNNI" for what in ("inputs", "weights")
)
COMPILED = ("quantized_decomposed", "torchao")  # namespaces whose operators inductor compiles itself


class NothingToQuantize(ExportError):
    """torchao found no layer in an exported graph, perhaps because the graph lacks metadata."""


def is_narrow(options: Options) -> bool:
    """Return whether one factor of each product has to take 7 bits, for this CPU or those of a portable artifact.

    An x86 CPU without VNNI adds two products in 16 bits, which 255 * 127 * 2 would overflow.
    """
    return options.portable or not environment.adds_bytes_exactly()


def require_float32(dtypes: Iterable[str]) -> None:
    """Raise ExportError if weights of these dtypes cannot be quantized."""
    half = sorted({dtype for dtype in dtypes if dtype in ("float16", "bfloat16")})
    if half:
        raise ExportError(
            f"int8 is made from float32 weights, and the model has {' and '.join(half)} ones",
            "load the model in float32",
        )


def _dtypes(module: torch.nn.Module) -> Iterator[str]:
    return (str(weight.dtype).removeprefix("torch.") for weight in module.parameters())


def dynamic(module: torch.nn.Module, kept: Sequence[str] = ()) -> tuple[torch.nn.Module, str]:
    """Return a copy whose Linear layers hold int8 weights and quantize their inputs at each call, and a note.

    The layers in `kept` stay as they are.

    Use torch.ao.quantization.quantize_dynamic, which supports only the CPU. Raise ExportError if the model is on
    another device or has no Linear layer.
    """
    import torch

    if next(module.parameters(), torch.empty(0)).device.type != "cpu":
        raise ExportError("torch supports dynamic quantization only on the CPU", "choose compile@int8, or trace@fp16")
    layer_names.require_known(module, kept)
    require_float32(_dtypes(module))
    layers = [path for path, inner in module.named_modules() if type(inner) is torch.nn.Linear]
    left = [path for path in layers if layer_names.is_kept(layer_names.own_path(path), kept)]
    found = len(layers) - len(left)
    if not found:
        raise ExportError("there is no Linear layer to quantize", "choose compile@int8 or onnx@int8")
    how: dict[Any, Any] = {torch.nn.Linear: torch.ao.quantization.default_dynamic_qconfig, **dict.fromkeys(left)}

    class Linear(torch.ao.nn.quantized.dynamic.Linear):
        """Names its input as torch.nn.Linear does, for callers that pass it by name."""

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return output

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation; the successor does not produce TorchScript
        quantized = torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(module), how, torch.qint8, {torch.nn.Linear: Linear}, inplace=True
        )
    return quantized, f"{found} linear layers in int8"


def functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program without operators that write to a tensor which is used again, as in `x[:, 0] = 0`.

    torchao quantizes a tensor where it is made, before such a write. Composite operators, such as linear, stay whole.
    """
    from exporter.model import writes

    if all(map(writes.is_plain, writes.families(program.graph))):
        return program
    try:
        made: torch.export.ExportedProgram = program.run_decompositions({})
    except Exception:  # torch can raise anything here
        return program
    return made


def pt2e(
    graph: torch.fx.GraphModule, examples: Sequence[Tensors], narrow: bool = False, kept: Sequence[str] = ()
) -> torch.nn.Module:
    """Quantize the module of an exported program for inductor on x86, with torchao's PT2E; export the result again.

    The range of each layer's inputs is calibrated with `examples`: finding it at each call is slower and no more
    accurate. With `narrow`, inputs take 7 bits. The layers in `kept` stay as they are.

    Raise MissingDependency without torchao, NothingToQuantize if there is nothing to quantize, and ValueError or
    IndexError if the graph has to be exported strictly; with torch 2.11, that is NothingToQuantize too.
    """
    import torch

    from exporter.model import flattening

    _require_torchao()
    require_float32(_dtypes(graph))
    _int8_sizes.compare_by_value()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    graph.graph.eliminate_dead_code()  # an unused layer has no output to quantize
    graph.recompile()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=False, reduce_range=narrow))
    for path in kept:
        quantizer.set_module_name_qconfig(f"model.{path}", None)
    with torch.no_grad():
        prepared = prepare_pt2e(graph, quantizer)
        for inputs in examples:
            prepared(*inputs)
        converted = convert_pt2e(prepared)
    if not any("dequantize" in str(node.target) for node in converted.graph.nodes):
        raise NothingToQuantize("torchao found nothing to quantize in the exported graph", "choose bf16, or onnx@int8")
    return flattening.FlatGraph(converted)


def weights(module: torch.nn.Module, kept: Sequence[str] = ()) -> torch.nn.Module:
    """Quantize the weights of the Linear layers in place, for a GPU, and return `module`. Calls unpack the weights.

    The layers in `kept` stay as they are.

    Use torchao's weight-only quantization. Raise ExportError if there is no Linear layer, MissingDependency without
    torchao.
    """
    import torch

    _require_torchao()
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer_names.require_known(module, kept)
    layers = [path for path, inner in module.named_modules() if type(inner) is torch.nn.Linear]
    if all(layer_names.is_kept(layer_names.own_path(path), kept) for path in layers):
        raise ExportError("there is no Linear layer to quantize", "choose bf16 or fp16 on a GPU")

    def chosen(inner: torch.nn.Module, path: str) -> bool:
        return isinstance(inner, torch.nn.Linear) and not layer_names.is_kept(layer_names.own_path(path), kept)

    quantize_(module, Int8WeightOnlyConfig(set_inductor_config=False), chosen)  # else it would allow TF32 everywhere
    return module


def _require_torchao() -> None:
    if not environment.version("torchao"):
        raise MissingDependency("compile@int8 needs torchao, which is not installed", "pip install torchao")
