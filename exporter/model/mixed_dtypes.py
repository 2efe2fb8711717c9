"""Models written for float32 in a half precision: operands of different floating-point dtypes are cast to one.

A model that creates float32 tensors itself, such as positions or a mask of -1e9, fails in eager once its weights are
bfloat16 or float16, because torch promotes operands of additions but not those of products. Within `agreeing`, only
calls that eager rejects do something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.modules import rnn
from torch.utils import _pytree as pytree

from exporter.model.precision import Cast

Function = Callable[..., Any]
Change = Callable[..., tuple[Any, Any]]  # of a call's arguments and keyword arguments
HALF = (torch.float16, torch.bfloat16)
PRODUCTS = (
    *(
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "inner",
        "einsum",
        "tensordot",
        "addmm",
        "addbmm",
        "baddbmm",
        "addmv",
        "addr",
    ),
    *(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)),
    *("linear", "bilinear", "scaled_dot_product_attention", "prelu", "__matmul__", "__rmatmul__"),
)
PRECISE = (
    *("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm"),
    *("grid_sample", "cdist", "lerp", "searchsorted", "bucketize"),
)
WRITES = ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put", "masked_scatter")
FILLS = {"masked_fill": 2, "fill": 1, "full_like": 1, "new_full": 2}  # the position of the number
IN_HALF = (
    "cross",
    "diagonal",
    "matmul",
    "multi_dot",
    "norm",
    "matrix_norm",
    "vector_norm",
    "vecdot",
)  # of torch.linalg
FLOAT32_ONLY = ("inverse", "det", "logdet", "slogdet", "cholesky", "stft", "istft", "complex", "view_as_complex")


@contextlib.contextmanager
def agreeing(module: torch.nn.Module) -> Iterator[None]:
    """Cast the operands of calls that eager rejects, if the module computes in a half precision.

    Products take the half precision; norms, distances and interpolation take float32. A tensor that is written into
    another one takes the dtype of that one. Numbers too large for the dtype become its largest number. Functions that
    have no kernel for half precisions, such as torch.linalg and torch.fft, compute in float32.
    """
    if not any(isinstance(inner, Cast) for inner in module.modules()):
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, change in _changes():
            usual = getattr(owner, name, None)
            if callable(usual):
                stack.enter_context(mock.patch.object(owner, name, _with(change, usual)))
        hook = torch.nn.modules.module.register_module_forward_pre_hook(_like_weights)
        stack.callback(hook.remove)
        yield


def _changes() -> Iterator[tuple[Any, str, Change]]:
    """Yield the owner and name of each function, and what is done to its arguments."""
    everywhere = (torch, functional, torch.Tensor)
    by_name: list[tuple[Iterable[str], Change]] = [(PRODUCTS, _narrow), (PRECISE, _wide), (FLOAT32_ONLY, _float32)]
    for owner in everywhere:
        for names, change in by_name:
            yield from ((owner, name, change) for name in names)
        for name in WRITES:
            yield from ((owner, one, _like_first) for one in (name, f"{name}_"))
        for name, place in FILLS.items():
            yield from ((owner, one, _bounded(place)) for one in (name, f"{name}_"))
    for owner in (torch.linalg, torch.fft):
        names = [name for name, one in vars(owner).items() if isinstance(one, BuiltinFunctionType)]
        yield from ((owner, name, _float32) for name in names if name not in IN_HALF and not name.startswith("_"))
    yield from ((torch.linalg, name, _narrow) for name in ("matmul", "multi_dot", "vecdot"))
    yield torch.Tensor, "__setitem__", _like_first


def _with(change: Change, usual: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return usual(*args, **kwargs)

    return call


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _dtypes(given: Any) -> list[torch.dtype]:
    """Return the floating-point dtypes in a call's arguments, the half precisions first."""
    found = {leaf.dtype for leaf in pytree.tree_leaves(given) if _is_real(leaf)}
    return sorted(found, key=lambda dtype: (dtype.itemsize, str(dtype)))


def _to(dtype: torch.dtype, given: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_real(leaf) else leaf, given)


def _narrow(*given: Any) -> tuple[Any, Any]:
    dtypes = _dtypes(given)
    return _to(dtypes[0], given) if len(dtypes) > 1 else given


def _wide(*given: Any) -> tuple[Any, Any]:
    dtypes = _dtypes(given)
    return _to(dtypes[-1], given) if len(dtypes) > 1 else given


def _float32(*given: Any) -> tuple[Any, Any]:
    halves = any(dtype in HALF for dtype in _dtypes(given))
    return _to(torch.float32, given) if halves else given


def _like_first(*given: Any) -> tuple[Any, Any]:
    (first, *_), _ = given
    return _to(first.dtype, given) if _is_real(first) and len(_dtypes(given)) > 1 else given


def _bounded(place: int) -> Change:
    """Return what limits the number at this position, or named so, to those of the first argument's dtype."""

    def change(args: Any, kwargs: Any) -> tuple[Any, Any]:
        dtype = kwargs.get("dtype") or getattr(args[0] if args else None, "dtype", None)
        if dtype not in HALF:
            return args, kwargs
        most = torch.finfo(dtype).max

        def limit(value: Any) -> Any:
            if isinstance(value, (int, float)) and most < abs(value) < float("inf"):
                return most if value > 0 else -most
            return value

        limited = {name: limit(one) if name in ("value", "fill_value") else one for name, one in kwargs.items()}
        return tuple(limit(one) if at == place else one for at, one in enumerate(args)), limited

    return change


def _like_weights(module: torch.nn.Module, args: Any) -> Any:
    """Cast a recurrent layer's input and state to the dtype of its weights, before it checks them."""
    if isinstance(module, (torch.nn.RNNBase, rnn.RNNCellBase)):
        return _to(next(module.parameters()).dtype, args)
    return None
