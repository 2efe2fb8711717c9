"""Functions that torch.export accepts only with constant sizes, as functions that accept a size of the input.

`torch.linspace(0, 1, x.shape[1])` and `avg_pool2d(x, x.shape[2:])` fix the size, because the operators take no symbolic
number there. So do `torch.as_tensor(x.shape[1] / 2)`, without a message, and `math.sqrt`. torch.max_pool1d fixes every
size of its input on the CPU, though its own argument is a constant.

This file is long because it replaces many functions, each in a few lines.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import _meta_registrations
from torch._decomp import decompositions
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

from exporter.model import inverse_stft
from exporter.model.sizes_in_builtins import SMALL, hints

Function = Callable[..., Any]
REMAINDERS = ("remainder", "__mod__")  # ONNX has no translation of them for a symbolic number
NUMBERS = (*REMAINDERS, "mul", "__mul__", "__rmul__", "div", "__truediv__")  # the others fail in inductor if complex
_EITHER_WAY = "use_mm_for_euclid_dist_if_necessary"  # the default of torch.cdist
_FEW = 25  # points, up to which torch.cdist subtracts by default
POOLS: dict[str, Any] = {"avg": torch.mean, "max": torch.amax}


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Replace the functions within this context, and torch.istft; with constant sizes they do what they always do."""
    made: list[tuple[Any, str, Function, int, str]] = [  # the position and name of the argument
        (torch, "as_tensor", torch.tensor, 0, "data"),
        (torch, "asarray", as_array, 0, "obj"),
        (torch, "linspace", linspace, 2, "steps"),
        (torch, "logspace", logspace, 2, "steps"),
        (torch.fft, "fftfreq", fftfreq, 0, "n"),
        (torch.fft, "rfftfreq", rfftfreq, 0, "n"),
        *((torch, f"{name}_window", window(name), 0, "window_length") for name in WINDOWS),
        (torch, "affine_grid_generator", decompositions.affine_grid_generator, 1, "size"),
        (torch.Tensor, "new_tensor", new_tensor, 1, "data"),
        (torch, "bincount", bincount, 2, "minlength"),
        (torch.Tensor, "bincount", bincount, 2, "minlength"),
        (functional, "one_hot", one_hot, 1, "num_classes"),
        (math, "sqrt", square_root, 0, "x"),
        (np, "sqrt", square_root, 0, "x"),
    ]
    with inverse_stft.traced(), contextlib.ExitStack() as stack:
        for number in (torch.SymInt, torch.SymFloat):
            stack.enter_context(mock.patch.object(number, "__divmod__", _divided, create=True))
            stack.enter_context(mock.patch.object(number, "__rdivmod__", lambda n, m: _divided(m, n), create=True))
            stack.enter_context(mock.patch.object(number, "__floordiv__", _floored(number.__floordiv__)))
        for owner, name, other, place, argument in made:
            either = _either(getattr(owner, name), other, place, argument)
            stack.enter_context(mock.patch.object(owner, name, either))
        for owner in (torch, torch.Tensor):
            for name in NUMBERS:
                if usual := getattr(owner, name, None):
                    stack.enter_context(mock.patch.object(owner, name, _by_tensor(usual, name)))
            stack.enter_context(mock.patch.object(owner, "take_along_dim", _along(owner.take_along_dim)))
        for name in ("tril_indices", "triu_indices"):
            stack.enter_context(mock.patch.object(torch, name, _triangle(getattr(torch, name), name[:4] == "triu")))
        stack.enter_context(mock.patch.object(torch.Tensor, "unfold", _unfolded(torch.Tensor.unfold)))
        stack.enter_context(mock.patch.object(torch, "cdist", _distances(torch.cdist)))
        stack.enter_context(mock.patch.object(torch, "max_pool1d", _maxima(torch.max_pool1d)))
        stack.enter_context(mock.patch.object(torch, "gradient", _differences(torch.gradient)))
        # Before torch 2.13, the sizes of pools are computed with a branch on the remainder.
        stack.enter_context(mock.patch.object(_meta_registrations, "div_rtn", operator.floordiv))
        for kind, reduce in POOLS.items():
            for dims in (1, 2, 3):
                name = f"{kind}_pool{dims}d"
                usual = getattr(functional, name)
                stack.enter_context(mock.patch.object(functional, name, _pool(usual, reduce, dims)))
        yield


def _either(usual: Function, other: Function, place: int, argument: str) -> Function:
    """Return a function that calls `other` if this argument has a size of the input."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if place < len(args) else kwargs.get(argument)
        return (other if _is_symbolic(given) else usual)(*args, **kwargs)

    return call


def _by_tensor(usual: Function, name: str) -> Function:
    """Return a function that takes a size of the input as a tensor without dimensions, where a number fails."""

    def call(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        fails = isinstance(input, torch.Tensor) and (name in REMAINDERS or input.is_complex())
        if fails and isinstance(other, torch.SymInt):
            dtype = torch.int64 if input.dtype == torch.bool else input.dtype.to_real()
            other = torch.scalar_tensor(other, dtype=dtype, device=input.device)
        return usual(input, other, *args, **kwargs)

    return call


def _is_symbolic(argument: Any) -> bool:
    if isinstance(argument, torch.SymInt | torch.SymFloat):
        return True
    return isinstance(argument, (list, tuple)) and any(map(_is_symbolic, argument))


def _divided(number: Any, divisor: Any) -> tuple[Any, Any]:
    return number // divisor, number % divisor


def _floored(usual: Function) -> Function:
    """Return a floor division that fixes the size where torch's differs from Python's: it is floor(n / fraction).

    11 // 1.1 is 9, because 1.1 is a little more than that in binary, and floor(11 / 1.1) is 10. For numbers of few bits
    both are the same.
    """

    def divide(number: Any, divisor: Any) -> Any:
        if isinstance(divisor, float) and not divides_exactly(divisor):
            return _fixed(number) // divisor
        return usual(number, divisor)

    return divide


def _fixed(number: Any) -> int | float:
    """Return a symbolic number as a number, and fix the sizes that it depends on."""
    environment: Any = number.node.shape_env
    known = hints(environment)
    for symbol in number.node.expr.free_symbols & known.keys():
        int(environment.create_symintnode(symbol, hint=int(known[symbol])))
    return int(number) if isinstance(number, torch.SymInt) else float(number)


def divides_exactly(divisor: float) -> bool:
    """Return whether floor(n / divisor) is n // divisor for all sizes, because the divisor has few bits."""
    return math.isfinite(divisor) and max(map(abs, divisor.as_integer_ratio())) <= SMALL


def square_root(size: Any) -> Any:
    """Return the square root of a size."""
    return size**0.5


def as_array(obj: Any, *, copy: bool | None = None, **options: Any) -> torch.Tensor:
    """Return what torch.asarray returns for numbers, which it always copies."""
    return torch.tensor(obj, **options)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> torch.Tensor:
    """Return what torch.logspace returns."""
    dtype = options.pop("dtype", None) or torch.get_default_dtype()
    exponents = linspace(start, end, steps, dtype=dtype if dtype.is_floating_point else torch.float64, **options)
    return torch.pow(base, exponents).to(dtype)


def fftfreq(n: int, d: float = 1.0, **options: Any) -> torch.Tensor:
    """Return what torch.fft.fftfreq returns."""
    place = torch.arange(n, **{"dtype": torch.get_default_dtype(), **options})
    return torch.where(2 * place < n, place, place - n) * (1 / (n * d))


def rfftfreq(n: int, d: float = 1.0, **options: Any) -> torch.Tensor:
    """Return what torch.fft.rfftfreq returns."""
    return torch.arange(n // 2 + 1, **{"dtype": torch.get_default_dtype(), **options}) * (1 / (n * d))


def window(name: str) -> Function:
    """Return a function that does what `torch.hann_window` does, for the window of this name."""

    def make(window_length: int, periodic: bool = True, *shape: float, **options: Any) -> torch.Tensor:
        shape = (*shape, *(options.pop(parameter) for parameter in ("alpha", "beta") if parameter in options))
        intervals: Any = window_length if periodic else torch.sym_max(window_length - 1, 1)
        place = torch.arange(window_length, **{"dtype": torch.get_default_dtype(), **options}) / intervals
        return WINDOWS[name](place + torch.sym_max(2 - window_length, 0) / 2, *shape)  # [1.0] for a length of 1

    return make


# The windows as functions of the place, from 0 to 1.
WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "bartlett": lambda place: 1 - (2 * place - 1).abs(),
    "blackman": lambda place: 0.42 - 0.5 * torch.cos(2 * torch.pi * place) + 0.08 * torch.cos(4 * torch.pi * place),
    "hamming": lambda place, alpha=0.54, beta=0.46: alpha - beta * torch.cos(2 * torch.pi * place),
    "hann": lambda place: 0.5 - 0.5 * torch.cos(2 * torch.pi * place),
}


def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Return what torch.linspace returns, which counts each half from its own end."""
    dtype = dtype or torch.get_default_dtype()
    place = torch.arange(steps, dtype=dtype if dtype.is_floating_point else torch.float64, **options)
    last = torch.sym_max(steps - 1, 1)
    step: Any = (end - start) / last
    return torch.where(2 * place < steps, start + step * place, end - step * (last - place)).to(dtype)


def one_hot(tensor: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return what torch.nn.functional.one_hot returns, without a check of the values."""
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def new_tensor(tensor: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
    """Return what Tensor.new_tensor returns."""
    return torch.tensor(data, **{"dtype": tensor.dtype, "device": tensor.device, **options})


def bincount(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Return what torch.bincount returns for numbers below `minlength`, and fail for others, which need more places."""
    added = torch.ones_like(input, dtype=torch.int64) if weights is None else weights
    if weights is not None and weights.dtype != torch.float32:
        added = weights.double()
    return torch.zeros(minlength, dtype=added.dtype, device=input.device).scatter_add(0, input.long(), added)


def _along(usual: Function) -> Function:
    """Return a take_along_dim that keeps symbolic sizes, which torch's fixes."""

    def call(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **options: Any) -> Any:
        if options or not _is_symbolic((*input.shape, *indices.shape)):
            return usual(input, indices, dim, **options)
        if dim is None:
            input, indices, dim = input.reshape(-1), indices.reshape(-1), 0
        axis = dim % input.dim()
        sizes = [there if _is_same(here, 1) else here for here, there in zip(input.shape, indices.shape, strict=True)]
        one, other = (t.expand(*sizes[:axis], t.shape[axis], *sizes[axis + 1 :]) for t in (input, indices))
        return one.gather(axis, torch.where(other < 0, other + one.shape[axis], other))

    return call


def _triangle(usual: Function, upper: bool) -> Function:
    """Return a tril_indices or triu_indices of squares of any size, without diagonals on the other side."""

    def call(row: Any, col: Any, offset: int = 0, **options: Any) -> Any:
        reach: Any = offset if upper else -offset
        if not _is_symbolic((row, col)) or not _is_same(row, col) or not isinstance(reach, int) or reach < 0:
            return usual(row, col, offset, **options)
        dtype = options.pop("dtype", None) or torch.int64
        side = row - reach if reach < 2 else torch.sym_max(row - reach, 0)
        count = side * (side + 1) // 2
        place = torch.arange(count, **options)
        place = count - 1 - place if upper else place
        line = ((torch.sqrt(8 * place.double() + 1) - 1) / 2).floor().long()  # exact: roots of squares are
        within = place - line * (line + 1) // 2
        first, second = (side - 1 - line, row - 1 - within) if upper else (line + reach, within)
        return torch.stack((first, second)).to(dtype)

    return call


def _unfolded(usual: Function) -> Function:
    """Return a Tensor.unfold whose windows may have a size of the input."""

    def call(tensor: torch.Tensor, dimension: int, size: Any, step: Any) -> Any:
        plain = (isinstance(step, int) and step == 1) or _is_same(size, step)  # torch cannot count other windows
        if not _is_symbolic((size, step)) or not plain:
            return usual(tensor, dimension, size, step)
        axis = dimension % tensor.dim()
        count = tensor.shape[axis] // size if _is_same(size, step) else (tensor.shape[axis] - size) // step + 1
        place = torch.arange(count, device=tensor.device)[:, None] * step + torch.arange(size, device=tensor.device)
        windows = tensor.index_select(axis, place.flatten()).unflatten(axis, (count, size))
        return windows.movedim(axis + 1, -1)

    return call


def _distances(usual: Function) -> Function:
    """Return a cdist that computes in one way for any number of points; torch's takes products for more than 25."""

    def call(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str = _EITHER_WAY) -> torch.Tensor:
        counts: tuple[Any, Any] = (x1.shape[-2], x2.shape[-2])
        many = any(statically_known_true(count > _FEW) for count in counts)
        few = all(statically_known_true(count <= _FEW) for count in counts)
        if compute_mode == _EITHER_WAY and not few:
            compute_mode = "use_mm_for_euclid_dist" if many else "donot_use_mm_for_euclid_dist"
        found: torch.Tensor = usual(x1, x2, p, compute_mode)
        return found

    return call


def _differences(usual: Function) -> Function:
    """Return a torch.gradient of dimensions of any size, between points at equal distances."""

    def call(input: torch.Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> Any:
        axes = range(input.dim()) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        steps = tuple(spacing) if isinstance(spacing, Sequence) else (spacing,) * len(axes)
        even = len(steps) == len(axes) and all(isinstance(step, int | float) for step in steps)
        if not _is_symbolic(input.shape) or not even:
            return usual(input, spacing=spacing, dim=dim, edge_order=edge_order)
        pairs = zip(axes, steps, strict=True)
        return tuple(_slope(input.movedim(axis, -1), step, edge_order).movedim(-1, axis) for axis, step in pairs)

    return call


def _slope(x: torch.Tensor, step: float, edge_order: int) -> torch.Tensor:
    last = x.shape[-1] - 1
    place = torch.arange(last + 1, device=x.device)
    after, before = torch.where(place < last, place + 1, place), torch.where(place > 0, place - 1, place)
    slope = (x.index_select(-1, after) - x.index_select(-1, before)) / (after - before) / step
    if edge_order == 2:
        near, middle, far = -1.5 / step, 2 / step, -0.5 / step
        start = near * x[..., :1] + middle * x[..., 1:2] + far * x[..., 2:3]
        end = -far * x[..., -3:-2] - middle * x[..., -2:-1] - near * x[..., -1:]
        slope = torch.where(place == 0, start, torch.where(place == last, end, slope))
    return slope


def _pool(usual: Function, reduce: Function, dims: int) -> Function:
    """Return a pool that reduces whole dimensions if the kernel has the sizes of the input."""

    def call(input: torch.Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,)
        kernel = kernel * dims if len(kernel) == 1 else kernel
        names = ("stride", "padding", "dilation or mode", "mode", "return_indices or divisor_override")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        plain = not any(given.get(name) for name in ("padding", "return_indices", "divisor_override", names[-1]))
        if plain and _is_symbolic(kernel) and all(map(_is_same, kernel, input.shape[-dims:])):
            return reduce(input, tuple(range(-dims, 0)), keepdim=True)
        return usual(input, kernel_size, *args, **kwargs)

    return call


def _maxima(usual: Function) -> Function:
    """Return a max_pool1d that keeps the sizes of the input: torch's on the CPU takes them as numbers."""

    def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_symbolic(tuple(input.shape)):
            return torch.max_pool1d_with_indices(input, *args, **kwargs)[0]
        return usual(input, *args, **kwargs)

    return call


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two sizes are always the same, without a condition on them in the exported program."""
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(one.node.expr == other.node.expr)
    return isinstance(one, int) and isinstance(other, int) and one == other
