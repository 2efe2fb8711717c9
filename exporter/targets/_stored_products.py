"""Products with weights in fewer bytes: in inductor's GEMM template on a CPU, and in FBGEMM's kernels in TorchScript.

`compiled` makes the template read them, with the kernel in `_gemm`. `exporter.model.packed_products` has FBGEMM's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from exporter.core.errors import ExportError
from exporter.targets import _gemm, _inductor

if TYPE_CHECKING:
    import torch

NAMESPACE = "exporter_weights"
LIBRARIES: list[Any] = []  # what defines the operator in this process


def product() -> Any:
    """Return the operator that inductor compiles: rows times the transposed weight, and times the scale of each row."""
    import torch

    if not LIBRARIES:
        library = torch.library.Library(NAMESPACE, "DEF")
        library.define("product(Tensor rows, Tensor small, Tensor? scale) -> Tensor")
        library.impl("product", _product, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::product", _shape, lib=library)
        LIBRARIES.append(library)
    return getattr(torch.ops, NAMESPACE).product.default


def _product(rows: torch.Tensor, small: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    made = rows @ small.to(rows.dtype).t()
    return made if scale is None else made * scale


def _shape(rows: torch.Tensor, small: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], small.shape[0]))


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let inductor compile `product` for a CPU within the context, which must be one of `_gemm.compiled`."""
    import torch._inductor.compile_fx  # first, because its modules import each other
    import torch._inductor.lowering
    from torch._inductor.codegen import cpp_gemm_template

    lowerings: Any = torch._inductor.lowering.lowerings
    operator = product()
    torch._inductor.lowering.register_lowering(operator, type_promotion_kind=None)(_lower)
    template: Any = cpp_gemm_template
    prune = template.prune_tensors

    def prune_all(before: Any, after: Any) -> None:
        prune(before, after)
        _prune(before, after)

    template.prune_tensors = prune_all
    try:
        yield
    finally:
        template.prune_tensors = prune
        lowerings.pop(operator, None)


def _lower(rows: Any, small: Any, scale: Any) -> Any:
    """Use the template where exporter's kernel serves; elsewhere, unpack the weight before torch's product."""
    import torch
    from torch._inductor import ir, lowering
    from torch._inductor.codegen.cpp_gemm_template import CppGemmTemplate
    from torch._inductor.codegen.cpp_utils import create_epilogue_with_attr
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.select_algorithm import autotune_select_algorithm, realize_inputs

    if not _gemm.serves(rows):
        unpacked = lowering.permute(lowering.to_dtype(small, rows.get_dtype()), [1, 0])
        product = lowering.lowerings[torch.ops.aten.mm.default](rows, unpacked)
        return product if scale is None else lowering.mul(product, scale)
    rows = ir.ExternKernel.require_contiguous(rows)
    *_, layout, left, right = mm_args(rows, small, mat2_transposed=True)

    def scaled(made: Any) -> Any:
        return create_epilogue_with_attr(made, "mul", other=realize_inputs(lowering.expand(scale, layout.size)))

    given = [left, right] if scale is None else [left, right, scale]
    choices: list[Any] = []
    with _gemm.rendered_once():
        CppGemmTemplate.add_choices(
            choices, layout, given, trans_w=True, epilogue_creator=None if scale is None else scaled
        )
    made = autotune_select_algorithm("exporter_product", choices, given, layout)
    return made[0] if isinstance(made, tuple) else made  # torch 2.14 returns the choice too


def _prune(before: Any, after: Any) -> None:
    """Leave out weights that are in the package in the template's layout and used nowhere else.

    Inductor's own version compares the names of attributes, with dots, with those of constants, which have none.
    """
    import torch
    from torch._inductor.virtualized import V

    for node in before:
        weight = V.graph.constants.get(node.get_name())
        if node in after or weight is None or weight.dtype not in (torch.float16, torch.int8) or weight.is_mkldnn:
            continue
        _inductor.forget(node)


PACKED = "packed_product"  # the attribute of a layer that holds its scripted product


@contextlib.contextmanager
def scripted(module: torch.nn.Module) -> Iterator[None]:
    """Let the linear layers with stored weights call a scripted product by FBGEMM within the context.

    Raises ExportError without FBGEMM.
    """
    import torch

    from exporter.model import packed_products, small_weights

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise ExportError("torch has no FBGEMM here, which needs an x86 CPU", "choose export, compile or onnx")
    layers = [one for _, one in small_weights.stored(module) if isinstance(one, small_weights.StoredLinear)]
    made: dict[int, Any] = {}
    for layer in layers:
        if id(layer.small) not in made:
            made[id(layer.small)] = packed_products.scripted(layer.small, layer.scale)
        setattr(layer, PACKED, made[id(layer.small)])
    try:
        yield
    finally:
        for layer in layers:
            delattr(layer, PACKED)


def packed_in(module: torch.jit.ScriptModule) -> list[str]:
    """Return the paths of the scripted products that a traced module calls, which freezing must leave as they are."""
    layers: dict[str, Any] = dict(module.named_modules(remove_duplicate=False))
    found = [path.rpartition(".") for path in layers]
    return [".".join((layer, name)) for layer, _, name in found if name == PACKED and _is_called(layers[layer])]


def _is_called(layer: Any) -> bool:
    return bool(layer._c._has_method("forward"))  # a trace has none of a layer that only lends its weight
