"""Running a graph in eager's own precision, in float64, or with some nodes in lower precision; and the errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from exporter.evidence.casts import WIDE
from exporter.model.tensors import Tensors, in_float64

QUANTIZED = tuple(getattr(torch.ops.aten, name).default for name in ("linear", "conv1d", "conv2d", "conv3d"))
PRODUCTS = ("mm", "addmm", "matmul", "bmm", "baddbmm", "scaled_dot_product_attention")
STORED = (torch.ops.aten.linear.default, torch.ops.aten.embedding.default)
LAYERS = (*QUANTIZED, *(getattr(torch.ops.aten, name).default for name in PRODUCTS))
APPLIES = {"int8": QUANTIZED, "fp16w": STORED, "int8w": STORED}  # precisions of some operators only


def eager(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Tensors:
    """Return the tensors of a graph in its own precision."""
    with torch.no_grad():
        return tuple(module(*(one.clone() for one in inputs)))


def doubled(value: Any) -> Any:
    """Return a narrower floating or complex tensor, or dtype, as the widest; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return in_float64(value.detach()) if value.dtype in WIDE else value
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


class _Double(fx.Interpreter):
    """Runs a graph in float64: inputs, weights, and the dtypes that its nodes name."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().call_function(target, pytree.tree_map(doubled, args), pytree.tree_map(doubled, kwargs))

    def fetch_attr(self, target: str) -> Any:
        return doubled(super().fetch_attr(target))


def reference(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Tensors:
    """Return the tensors of a graph in float64."""
    with torch.no_grad():
        found: Tensors = _Double(module, garbage_collect_values=True).run(*(doubled(one).clone() for one in inputs))
    return found


class _Watched(fx.Interpreter):
    """Runs a graph and keeps copies of the values of some nodes."""

    def __init__(self, module: fx.GraphModule, nodes: Collection[fx.Node]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.nodes, self.values = set(nodes), dict[fx.Node, torch.Tensor]()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.nodes:
            self.values[n] = value.clone()
        return value


def values(module: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[torch.Tensor]) -> Tensors:
    """Return eager's values of some nodes of the module."""
    watched = _Watched(module, nodes)
    with torch.no_grad():
        watched.run(*inputs)
    return tuple(watched.values[node] for node in nodes)


def error(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the error of `got` against `exact` as a multiple of eager's own, that of `own`.

    Integers count as 0 if they agree wherever eager agrees with the reference, otherwise as infinity. So does a NaN, an
    infinity or a shape that the reference does not have.
    """
    if got.shape != exact.shape:
        return float("inf")
    got, own, exact = (one.detach().cpu() for one in (got, own, exact))
    if not (exact.is_floating_point() or exact.is_complex()):
        sound = own.to(exact.dtype) == exact
        return float("inf") if bool((got.to(exact.dtype) != exact)[sound].any()) else 0.0
    exact, mine, eagers = exact.to(torch.complex128), got.to(torch.complex128), own.to(torch.complex128)
    finite = exact.isfinite() & eagers.isfinite()
    if bool((~mine.isfinite() & finite).any()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    floor = rms(exact[finite]) * torch.finfo(own.dtype if own.is_floating_point() else torch.float32).eps / 4
    return rms((mine - exact)[finite]) / max(rms((eagers - exact)[finite]), floor, 1e-300)


def rms(values: torch.Tensor) -> float:
    """Return the root mean square."""
    return float(values.abs().double().square().mean().sqrt()) if values.numel() else 0.0


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square of the difference, over that of `exact`."""
    got, exact = got.detach().double(), exact.detach().double()
    finite = exact.isfinite() & got.isfinite()
    return rms((got - exact)[finite]) / max(rms(exact[finite]), 1e-300) if bool(finite.any()) else 0.0


Lower = Callable[[torch.Tensor], torch.Tensor]


def tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Round float32 to the 10 bits of TF32's mantissa."""
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def int8(tensor: torch.Tensor) -> torch.Tensor:
    """Round to 255 levels over the range of the whole tensor."""
    scale = tensor.abs().amax().clamp(min=1e-30) / 127
    return (tensor / scale).round().clamp(-127, 127) * scale


def int8_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Round to 255 levels over the range of each row, or output channel."""
    flat = tensor.flatten(1)
    scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return ((flat / scale).round().clamp(-127, 127) * scale).view_as(tensor)


ROUNDINGS: dict[str, Lower] = {
    "tf32": tf32,  # fp16 has as many bits
    "bf16": lambda tensor: tensor.bfloat16().float(),
    "fp16": lambda tensor: tensor.half().float(),
}


WEIGHTS: dict[str, Lower] = {"fp16w": ROUNDINGS["fp16"], "int8w": int8_rows}  # of precisions that store them


class Lowered(fx.Interpreter):
    """Runs a graph in float32, in which the operands of some nodes are rounded first.

    With `results`, their results are rounded too, as they are if such nodes store what they compute.
    """

    def __init__(self, module: fx.GraphModule, nodes: Collection[str], rounding: str, results: bool = False) -> None:
        """Round the operands of the nodes with these names: to `tf32`, `bf16`, `fp16`, or `int8` for layers.

        `fp16w` and `int8w` round only the weights of linear layers and embeddings.
        """
        super().__init__(module, garbage_collect_values=True)
        self.chosen, self.rounding, self.results = frozenset(nodes), rounding, results

    def run_node(self, n: fx.Node) -> Any:
        if n.name not in self.chosen:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if self.rounding in WEIGHTS:
            place = 0 if n.target is torch.ops.aten.embedding.default else 1
            args = (*args[:place], WEIGHTS[self.rounding](args[place]), *args[place + 1 :])
            return self.call_function(n.target, args, kwargs)
        if self.rounding == "int8":
            args = (int8(args[0]), int8_rows(args[1]), *args[2:])
            return self.call_function(n.target, args, kwargs)
        lower = ROUNDINGS[self.rounding]
        found = self.call_function(n.target, _rounded(args, lower), _rounded(kwargs, lower))
        return _rounded(found, lower) if self.results else found


class Finite(fx.Interpreter):
    """Runs a graph, with every value rounded if asked for, and records by name whether each node's value is finite."""

    def __init__(self, module: fx.GraphModule, lower: Lower | None = None) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.lower, self.finite = lower, dict[str, bool]()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            value = _rounded(value, self.lower) if self.lower else value
            tensors = [one for one in pytree.tree_leaves(value) if _is_float32(one)]
            self.finite[n.name] = all(bool(one.isfinite().all()) for one in tensors)
        return value


def _rounded(values: Any, lower: Lower) -> Any:
    return pytree.tree_map(lambda one: lower(one) if _is_float32(one) else one, values)


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def lowered(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    nodes: Collection[str],
    rounding: str,
    results: bool = False,
) -> Tensors:
    """Return the tensors of a graph in which the operands of the named nodes, and with `results` these, are rounded."""
    with torch.no_grad():
        found: Tensors = Lowered(module, nodes, rounding, results).run(*(one.clone() for one in inputs))
    return found
