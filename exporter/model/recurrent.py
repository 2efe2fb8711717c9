"""LSTM, GRU and plain recurrent layers over sequences of any length.

torch.export keeps operators such as `aten.lstm.input`, but computes their outputs' shapes by running every step, which
fixes the length to the example's. The shapes depend only on the inputs, so this module computes them directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import DispatchKey

Kernel = Callable[..., Any]
OPERATORS = tuple(getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


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
    loops = (lstm, gru, _plain_loop(torch.tanh), _plain_loop(torch.relu))
    return _as({op: _for_any_length(op, loop) for op, loop in zip(OPERATORS, loops, strict=True) if loop})


def _plain_loop(activate: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    """Return a plain recurrent layer as a while_loop, which torch has only for LSTM and GRU."""
    from torch._decomp import decompositions
    from torch._higher_order_ops.while_loop import while_loop

    helper: Any = decompositions._rnn_helper

    def layer(inputs: torch.Tensor, first: torch.Tensor, params: Any, has_biases: bool, reverse: bool = False) -> Any:
        weight, biases = params[1].clone(), params[2:] if has_biases else (None, None)
        given = torch.nn.functional.linear(inputs, params[0], biases[0])
        given = given.flip(0) if reverse else given

        def goes_on(count: torch.Tensor, outputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return count < given.size(0)

        def step(count: torch.Tensor, outputs: torch.Tensor, hidden: torch.Tensor) -> Any:
            index: Any = count.item()
            torch._check(index >= 0)
            torch._check(index < given.size(0))
            following = activate(given[index] + torch.nn.functional.linear(hidden, weight, biases[1]))
            outputs = outputs.clone()
            outputs[index] = following
            return count + 1, outputs, following

        start = torch.tensor(0), given.new_empty(given.shape), first.clone()
        _, outputs, last = while_loop(goes_on, step, start)
        return outputs.flip(0) if reverse else outputs, last

    def loop(inputs: torch.Tensor, state: torch.Tensor, params: Any, has_biases: bool, *rest: Any) -> Any:
        gathered = decompositions.gather_params(params, has_biases, False)
        made, states = helper(inputs, state.unbind(0), gathered, has_biases, *rest, layer)
        return made, torch.stack(states, 0)

    return loop


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
