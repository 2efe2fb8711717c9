"""GELU within the matrix product before it, in half precision on a GPU.

A linear layer writes its result in half precision, and a second kernel reads it and applies GELU. cuBLASLt can apply
GELU to the product's float32 sums before they are rounded, which saves a pass over memory. It computes GELU's tanh
approximation, whose absolute error is below 5e-4. So a layer with this approximation is fused in both half precisions,
and one with exact GELU only in bfloat16, where the rounding that is saved is worth as much: all-MiniLM-L6-v2's hidden
state has a relative root mean square error of 0.0114 against float64 instead of 0.0115. In float16 it would be 0.0020
instead of 0.0015.

Source: aten._addmm_activation, whose decomposition in torch/_decomp and use of CUBLASLT_EPILOGUE_GELU_BIAS are torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

OPERATORS = ("aten.gelu", "aten.addmm")


@contextlib.contextmanager
def compiled(fallback: Sequence[str], devices: tuple[str, ...] = ("cuda",)) -> Iterator[set[str]]:
    """Within the context, let inductor fuse GELU into the linear layer before it on these types of devices.

    Nothing is changed if torch's kernels of OPERATORS are asked for, or if inductor chooses among templates, in which
    it applies GELU itself. Yields a set to which the names of products whose exact GELU is approximated are added.
    """
    from torch._inductor import config

    approximated: set[str] = set()
    if any(one.startswith(OPERATORS) for one in fallback):
        yield approximated
        return
    before: Any = config.post_grad_custom_pre_pass

    def act(graph: fx.Graph) -> None:
        if before is not None:
            before(graph)
        if not (config.max_autotune or config.max_autotune_gemm):
            approximated.update(_fuse(graph, devices))

    with config.patch({"post_grad_custom_pre_pass": act}):
        yield approximated


def note(approximated: Collection[str]) -> tuple[str, ...]:
    """Return the note for the row of a package."""
    count = len(approximated)
    layers = "one layer" if count == 1 else f"{count} layers"
    return (f"the exact GELU of {layers} is replaced by its tanh approximation",) if count else ()


def _fuse(graph: fx.Graph, devices: tuple[str, ...]) -> Iterator[str]:
    """Fuse each GELU that can be; yield the names of the products with an exact one."""
    import torch

    aten = torch.ops.aten
    for gelu in graph.find_nodes(op="call_function", target=aten.gelu.default):
        product = _product(gelu.args[0])
        if product is None or product.meta["val"].device.type not in devices:
            continue
        exact = gelu.kwargs.get("approximate", "none") == "none"
        if product.meta["val"].dtype in ((torch.bfloat16,) if exact else (torch.bfloat16, torch.float16)):
            product.target = aten._addmm_activation.default
            product.kwargs = {**product.kwargs, "use_gelu": True}
            gelu.replace_all_uses_with(gelu.args[0])
            graph.erase_node(gelu)
            if exact:
                yield product.name


def _product(value: Any) -> Any:
    """Return the `addmm` node whose result only this value uses, through views, if cuBLASLt can apply GELU to it.

    It cannot for one row, one column or one element to sum; then torch has a kernel of its own for GELU.
    """
    import torch

    aten = torch.ops.aten
    while value.target in (aten.view.default, aten.reshape.default) and len(value.users) == 1:
        value = value.args[0]
    if value.target is not aten.addmm.default or len(value.users) != 1 or value.kwargs.get("beta", 1) != 1:
        return None
    bias, rows, weight = (node.meta["val"] for node in value.args)
    sizes = (*rows.shape, weight.shape[1])
    if any(isinstance(size, int) and size <= 1 for size in sizes):
        return None
    return value if bias.shape == weight.shape[1:] and bias.dtype == value.meta["val"].dtype else None
