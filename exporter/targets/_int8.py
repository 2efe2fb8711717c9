"""int8 quantization of weights and, where that is faster, activations. Each target uses its own library."""

from __future__ import annotations

import ast
import copy
import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import environment
from exporter.core.errors import ExportError, MissingDependency
from exporter.model import layer_names
from exporter.targets import _int8_sizes

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors
    from exporter.targets import Options

SCOPES = "pkg.torch.onnx.name_scopes"
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
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for argument, given in zip(schema.arguments if schema else (), node.args, strict=False):
            if argument.is_write and _is_used_again(given, node):
                made: torch.export.ExportedProgram = program.run_decompositions({})
                return made
    return program


def _is_used_again(tensor: Any, writer: Any) -> bool:
    """Return whether a graph may use a tensor after a node that writes to it: it is a view, or another node uses it."""
    import torch

    if not isinstance(tensor, torch.fx.Node):
        return True
    schema = getattr(tensor.target, "_schema", None)
    is_view = any(one.alias_info and not one.alias_info.is_write for one in (schema.returns if schema else ()))
    return is_view or any(user > writer for user in tensor.users)


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


def onnx(
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
    del model.graph.value_info[:]  # folding has made some shapes wrong, and shape inference stops at them
    _transpose_shared_weights(model.graph)
    convolves = any(node.op_type == "Conv" for node in model.graph.node)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    logging.getLogger().setLevel(logging.ERROR)  # it logs advice to preprocess, on the root logger
    made = path.with_name(f"int8-{path.name}")
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
    if convolves:
        ort.quantize_static(
            model, str(made), _Reader(names, make_examples()), activation_type=ort.QuantType.QUInt8, **common
        )
    else:
        ort.quantize_dynamic(model, str(made), **common)
    quantized = library.load(str(made))
    if next(itertools.islice(_graphs(quantized.graph), 1, None), None):
        quantized = _in_order(quantized)
    library.helper.set_model_props(quantized, properties)
    library.save(quantized, str(path))
    made.unlink()
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


class _Reader:
    """The examples as a CalibrationDataReader of onnxruntime."""

    def __init__(self, names: Sequence[str], examples: Sequence[Tensors]) -> None:
        self._feeds = iter([dict(zip(names, map(_array, inputs), strict=True)) for inputs in examples])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
