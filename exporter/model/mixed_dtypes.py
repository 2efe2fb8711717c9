"""Models written for float32 in a half precision: calls that eager rejects get operands of one dtype.

A model that creates float32 tensors itself, such as positions, or fills with -1e9 may fail in eager once its weights
are bfloat16 or float16. Eager is run with the example to find out which calls it rejects; only calls of these functions
with these dtypes are changed when the model is captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.modules import rnn
from torch.utils import _pytree as pytree

from exporter.model.precision import Cast
from exporter.model.state.snapshot import Snapshot
from exporter.model.tensors import Tensors

Function = Callable[..., Any]
Given = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a call
Change = Callable[..., Given]  # of positional and keyword arguments
HALF = (torch.float16, torch.bfloat16)
PRODUCTS = frozenset((
    "matmul", "mm", "bmm", "mv", "dot", "inner", "einsum", "tensordot", "addmm", "addbmm", "baddbmm", "addmv", "addr",
    "__matmul__", "__rmatmul__", "linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention", "prelu",
))  # fmt: skip
PRECISE = frozenset(("layer_norm", "group_norm", "rms_norm", "grid_sample", "lerp", "searchsorted", "bucketize"))
FLOAT32_ONLY = frozenset(("inverse", "det", "logdet", "slogdet", "cholesky", "cdist", "stft", "istft", "complex"))
WRITES = ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put", "masked_scatter")
FILLS = {"masked_fill": 2, "index_fill": 3, "fill": 1, "full": 1, "full_like": 1, "new_full": 2}  # place of the number
RECURRENT = "recurrent"
Rejected = set[tuple[str, tuple[torch.dtype, ...]]]  # the name and dtypes of each call


@contextlib.contextmanager
def agreeing(module: torch.nn.Module, example: Tensors) -> Iterator[None]:
    """Change the calls that eager rejects for `example`, if the module computes in a half precision.

    Products take the half precision; norms and interpolation take float32. A tensor that is written into another one
    takes the dtype of that one. A number that is too large to fill a tensor becomes the largest number of the dtype.
    Functions that have no kernel for half precisions, such as those of torch.linalg and torch.fft, compute in float32.

    Nothing changes if eager runs, or if it fails for another reason.
    """
    cast = next((inner for inner in module.modules() if isinstance(inner, Cast)), None)
    if cast is None:
        yield
        return
    if cast.rejected is None:
        cast.rejected = _rejected(module, example)
    if not cast.rejected:
        yield
        return
    with _patched(module, cast.rejected, learn=False):
        yield


def _rejected(module: torch.nn.Module, example: Tensors) -> Rejected:
    """Return the calls that eager rejects; none if it runs, or fails with other operands too."""
    found: Rejected = set()
    held = Snapshot(module)
    try:
        for context in (contextlib.nullcontext(), _patched(module, found, learn=True)):
            with contextlib.suppress(Exception), context, torch.no_grad():  # a model can raise anything
                module(*(tensor.clone() for tensor in example))
                return found
            held.restore()
    finally:
        held.restore()
    return set()


@contextlib.contextmanager
def _patched(module: torch.nn.Module, rejected: Rejected, learn: bool) -> Iterator[None]:
    """Change the rejected calls; with `learn`, try each call, and add those that are rejected."""

    def wrapped(name: str, usual: Function, change: Change) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            signed = name, tuple(leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if _is_real(leaf))
            if not learn:
                args, kwargs = change(args, kwargs) if signed in rejected else (args, kwargs)
                return usual(*args, **kwargs)
            try:
                return usual(*args, **kwargs)
            except (RuntimeError, ValueError):
                if not any(dtype in HALF for dtype in signed[1]) and kwargs.get("dtype") not in HALF:
                    raise
                args, kwargs = change(args, kwargs)
                result = usual(*args, **kwargs)
                rejected.add(signed)
                return result

        return call

    def like_weights(layer: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Cast a recurrent layer's input and state to the dtype of its weights, before it checks them."""
        weight = next(layer.parameters(), None)
        if weight is None or weight.dtype not in HALF or {*_dtypes(args, kwargs)} <= {weight.dtype}:
            return None
        if learn:
            rejected.add((RECURRENT, ()))
        return _to(weight.dtype, (args, kwargs))

    with contextlib.ExitStack() as stack:
        for owner, name, change in _changes():
            if callable(usual := getattr(owner, name, None)):
                stack.enter_context(mock.patch.object(owner, name, wrapped(name, usual, change)))
        if learn or (RECURRENT, ()) in rejected:
            for layer in module.modules():
                if isinstance(layer, (torch.nn.RNNBase, rnn.RNNCellBase)):
                    stack.callback(layer.register_forward_pre_hook(like_weights, with_kwargs=True).remove)
        yield


def _changes() -> Iterator[tuple[Any, str, Change]]:
    """Yield the owner and name of each function, and how its arguments change. Not every owner has every name."""
    for owner in (torch, functional, torch.Tensor):
        for names, change in ((PRODUCTS, _narrow), (PRECISE, _wide), (FLOAT32_ONLY, _float32)):
            yield from ((owner, name, change) for name in names)
        for name in WRITES:
            yield from ((owner, one, _like_first) for one in (name, f"{name}_"))
        for name, place in FILLS.items():
            yield from ((owner, one, _bounded(place)) for one in (name, f"{name}_"))
    yield torch.Tensor, "__setitem__", _like_first
    yield functional, "batch_norm", _evaluated
    for owner in (torch.linalg, torch.fft):
        for name, one in vars(owner).items():
            if isinstance(one, BuiltinFunctionType) and not name.startswith("_"):
                yield owner, name, _float32


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _dtypes(*given: Any) -> list[torch.dtype]:
    """Return the floating-point dtypes in a call's arguments, the narrowest first."""
    found = {leaf.dtype for leaf in pytree.tree_leaves(given) if _is_real(leaf)}
    return sorted(found, key=lambda dtype: (dtype.itemsize, str(dtype)))


def _to(dtype: torch.dtype, given: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_real(leaf) else leaf, given)


def _narrow(args: Any, kwargs: Any) -> Given:
    """Cast all operands to the narrowest dtype, unless the result goes to a given tensor."""
    return (args, kwargs) if "out" in kwargs else _to(_dtypes(args, kwargs)[0], (args, kwargs))


def _wide(args: Any, kwargs: Any) -> Given:
    """Cast all operands to the widest dtype, unless the result goes to a given tensor."""
    return (args, kwargs) if "out" in kwargs else _to(_dtypes(args, kwargs)[-1], (args, kwargs))


def _evaluated(args: Any, kwargs: Any) -> Given:
    """Do the same for a batch norm, unless it writes its running statistics."""
    training = args[5] if len(args) > 5 else kwargs.get("training", False)
    return (args, kwargs) if training else _wide(args, kwargs)


def _float32(args: Any, kwargs: Any) -> Given:
    """Cast all operands to float32, unless the result goes to a given tensor."""
    return (args, kwargs) if "out" in kwargs else _to(torch.float32, (args, kwargs))


def _like_first(args: Any, kwargs: Any) -> Given:
    """Cast what is written to the dtype of the tensor that it is written to."""
    first = args[0] if args else kwargs.get("input")
    return _to(first.dtype, (args, kwargs)) if _is_real(first) else (args, kwargs)


def _bounded(place: int) -> Change:
    """Return what limits the number at this position, or named so, to those of the dtype of the filled tensor."""

    def change(args: Any, kwargs: Any) -> Given:
        first = args[0] if args else kwargs.get("input")
        dtype = kwargs.get("dtype") or getattr(first, "dtype", torch.float32)
        most = torch.finfo(dtype).max

        def limit(value: Any) -> Any:
            if isinstance(value, (int, float)) and most < abs(value) < float("inf"):
                return most if value > 0 else -most
            return value

        limited = {name: limit(one) if name in ("value", "fill_value") else one for name, one in kwargs.items()}
        return tuple(limit(one) if at == place else one for at, one in enumerate(args)), limited

    return change
