"""LSTM and GRU over sequences of any length.

torch.export keeps `aten.lstm.input` and `aten.gru.input`, but computes their outputs' shapes by running every step,
which fixes the length to the example's. The shapes depend only on the inputs, so this module computes them directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import DispatchKey

Kernel = Callable[..., Any]
OPERATORS = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)


def kept() -> contextlib.AbstractContextManager[None]:
    """Keep these operators whole while a graph is captured, or translated by code that supports them."""
    return _as(dict.fromkeys(OPERATORS, _shapes))


def looped() -> contextlib.AbstractContextManager[None]:
    """Turn a sequence of symbolic length into one oneDNN kernel or a while_loop while a graph is compiled."""
    try:
        from torch.export import _patches
    except ImportError:  # another torch version: the length is fixed, which the golden detects
        return contextlib.nullcontext()
    lstm, gru = (getattr(_patches, f"{name}_while_loop_impl", None) for name in ("lstm", "gru"))
    kernels = {op: _for_any_length(op, loop) for op, loop in zip(OPERATORS, (lstm, gru), strict=True) if loop}
    return _as(kernels)


def _shapes(
    inputs: torch.Tensor,
    states: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return uninitialised outputs, (length, batch, directions * width), and states of the given shapes."""
    states = states if isinstance(states, (list, tuple)) else [states]
    width = states[0].size(2) * (2 if bidirectional else 1)
    return inputs.new_empty((*inputs.shape[:-1], width)), *(torch.empty_like(state) for state in states)


def _for_any_length(op: Any, loop: Kernel) -> Kernel:
    from torch._decomp import decompositions

    unrolled: Kernel = op.py_kernels[DispatchKey.CompositeImplicitAutograd]

    def decomposed(inputs: torch.Tensor, states: Any, params: Any, has_biases: bool, *rest: Any) -> Any:
        length: Any = inputs.shape[1 if rest[-1] else 0]  # torch.SymInt if dynamic
        fits = isinstance(length, int) or (op is torch.ops.aten.lstm.input and has_kernel(inputs, states, params))
        return (unrolled if fits else loop)(inputs, states, params, has_biases, *rest)

    def has_kernel(inputs: torch.Tensor, states: Any, params: Any) -> bool:
        layer = decompositions.select_one_layer_lstm_function(inputs, states, [params])
        return bool(layer is decompositions.mkldnn_one_layer_lstm)

    return decomposed


@contextlib.contextmanager
def _as(kernels: Mapping[Any, Kernel]) -> Iterator[None]:
    """Replace the operators' decompositions for tracing; torch's kernels still run eagerly."""
    table = torch._decomp.global_decomposition_table["post_autograd"]
    usual = {op: (op.py_kernels[DispatchKey.CompositeImplicitAutograd], table[op]) for op in kernels}
    try:
        for op, kernel in kernels.items():
            _put(op, table, kernel, kernel)
        yield
    finally:
        for op, (kernel, decomposition) in usual.items():
            _put(op, table, kernel, decomposition)


def _put(op: Any, table: Any, kernel: Kernel, decomposition: Kernel) -> None:
    op.py_kernels[DispatchKey.CompositeImplicitAutograd] = kernel
    op._dispatch_cache.clear()
    table[op] = decomposition
