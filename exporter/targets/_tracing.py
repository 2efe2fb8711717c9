"""Workarounds for torch.jit.trace: calls that it cannot record, sizes that it fixes, and branches that it drops.

This file is long because each of them needs its own list of torch's functions.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from types import BuiltinMethodType, MethodType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from exporter.core import checks_in_code, source_lines
from exporter.core.errors import ExportError
from exporter.model import (
    causal_masks,
    differentiation,
    distributions,
    holders,
    mixed_dtypes,
    mixture_of_experts,
    padded_encoders,
    sizes_in_builtins,
    sparse_matrices,
)
from exporter.model.state import carrying
from exporter.model.state.snapshot import Snapshot
from exporter.model.tensors import Tensors
from exporter.targets import _traced_convolutions, _traced_resizing, _traced_writes

# Functions of a tensor and a number, which may be a bool. The result has the tensor's dtype, or is boolean.
_GIVEN = frozenset(("value", "fill_value", "other"))  # names of the parameter for the number
_FILLING = frozenset((
    torch.Tensor.fill_, torch.Tensor.masked_fill_, torch.Tensor.masked_fill, torch.Tensor.index_fill_,
    torch.Tensor.index_fill, torch.Tensor.new_full, torch.Tensor.eq, torch.Tensor.__eq__, torch.Tensor.ne,
    torch.Tensor.__ne__, torch.fill_, torch.fill, torch.masked_fill, torch.index_fill, torch.full_like, torch.eq,
    torch.ne, torch.scatter, torch.Tensor.scatter, torch.Tensor.scatter_, torch.Tensor.gt, torch.Tensor.__gt__,
    torch.Tensor.ge, torch.Tensor.__ge__, torch.Tensor.lt, torch.Tensor.__lt__, torch.Tensor.le, torch.Tensor.__le__,
    torch.gt, torch.ge, torch.lt, torch.le,
))  # fmt: skip
# Functions that accept a boolean scalar tensor in place of a bool, with the same dtype of the result.
_OF_FLAGS = frozenset((
    torch.where, torch.Tensor.where, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.Tensor.bitwise_and,
    torch.Tensor.bitwise_or, torch.Tensor.bitwise_xor, torch.Tensor.__and__, torch.Tensor.__or__, torch.Tensor.__xor__,
    torch.Tensor.__iand__, torch.Tensor.__ior__, torch.Tensor.__ixor__,
))  # fmt: skip
# Arithmetic, and its logical equivalents: freezing turns a boolean scalar tensor in arithmetic back into a bool.
_LOGICAL: Mapping[Callable[..., Any], Callable[..., torch.Tensor]] = {
    torch.add: torch.logical_or,
    torch.Tensor.add: torch.logical_or,
    torch.Tensor.add_: torch.Tensor.logical_or_,
    torch.mul: torch.logical_and,
    torch.Tensor.mul: torch.logical_and,
    torch.Tensor.mul_: torch.Tensor.logical_and_,
}


# Pools, with the number of their dimensions, and what they take for each dimension, which comes after the input.
_POOLS = {name.format(n): n for name in ("max_pool{}d", "max_pool{}d_with_indices", "avg_pool{}d") for n in (1, 2, 3)}
_WINDOW = frozenset(("kernel_size", "stride", "padding"))
# Functions that make a tensor of numbers, with the position of the numbers.
_COPIES: Mapping[Callable[..., Any], int] = {
    torch.tensor: 0,
    torch.as_tensor: 0,
    torch.asarray: 0,
    torch.Tensor.new_tensor: 1,
}
_ROLLS = frozenset((torch.roll, torch.Tensor.roll))
_LIMITS = frozenset((
    torch.clamp, torch.clamp_, torch.clip, torch.clip_, torch.Tensor.clamp, torch.Tensor.clamp_, torch.Tensor.clip,
    torch.Tensor.clip_, torch.clamp_min, torch.clamp_max, torch.Tensor.clamp_min, torch.Tensor.clamp_max,
    torch.Tensor.clamp_min_, torch.Tensor.clamp_max_,
))  # fmt: skip


class Traceable(TorchFunctionMode):
    """Replaces `started.fill_(True)` by `started.fill_(1)`, because tracing the former is an internal error of torch.

    Likewise replaces `torch.full(size, True)`, and the bool in `torch.where(condition, x, False)` by a boolean tensor.
    A size as a pool's kernel, as in `max_pool1d(x, x.size(2))`, becomes a list: a trace records a size only in a list.
    `torch.tensor([width, height])` stacks the sizes, which it would otherwise copy as constants, and a size that limits
    a tensor, as in `x.clamp(max=width)`, is moved to the tensor's device. Writes by index fix no sizes.
    `interpolate` takes a factor that is computed from sizes, and transposed convolutions an `output_size`.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func in _FILLING:
            args = tuple(map(_number, args))
            named = {name: _number(one) if name in _GIVEN else one for name, one in named.items()}
        elif func is torch.full:
            args, named = _full(args, named)
        elif func in _OF_FLAGS:
            args, named = tuple(map(_tensor, args)), {name: _tensor(one) for name, one in named.items()}
        elif dims := _POOLS.get(getattr(func, "__name__", "")):
            args = tuple((one,) * dims if _is_size(one) and at in (1, 2, 3) else one for at, one in enumerate(args))
            named = {n: (one,) * dims if _is_size(one) and n in _WINDOW else one for n, one in named.items()}
        elif (at := _COPIES.get(func)) is not None:
            data = args[at] if len(args) > at else named.get("data", named.get("obj"))
            if _has_tensor(data) and all(isinstance(one, (torch.Tensor, Number)) for one in _flat(data)):
                with warnings.catch_warnings(action="ignore"):
                    constant = func(*args, **named)
                given = len(args) > at + 1 or named.get("dtype") or func is torch.Tensor.new_tensor
                again = any(isinstance(mode, InFloat64) for mode in _get_current_function_mode_stack())
                if again and constant.dtype is torch.float64 and not given and all(map(_of_sizes, _tensors(data))):
                    constant = constant.to(torch.get_default_dtype())  # as of Python's floats
                return _stacked(constant, data)
        elif func in _ROLLS:
            args = tuple((one,) if _is_size(one) and at == 1 else one for at, one in enumerate(args))
            named = {n: (one,) if _is_size(one) and n == "shifts" else one for n, one in named.items()}
        elif func in _LIMITS:
            tensor = args[0] if args else named["input"]
            args = tuple(_beside(tensor, one) for one in args)
            named = {name: _beside(tensor, one) for name, one in named.items()}
        elif func in _LOGICAL and len(args) > 1 and isinstance(args[1], bool):
            if args[0].dtype is torch.bool:
                return _LOGICAL[func](args[0], _tensor(args[1]))
            args = (args[0], int(args[1]), *args[2:])
        elif func is torch.Tensor.__setitem__:
            return _traced_writes.write(*args)
        elif func in _traced_convolutions.TRANSPOSED:
            return _traced_convolutions.transposed(func, *args, **named)
        elif func is F.interpolate and _traced_resizing.by_tensors(*args, **named):
            for mode in _get_current_function_mode_stack():
                if isinstance(mode, Conversions) and (frame := source_lines.frame_here()):
                    mode.callers[id(frame.f_globals)] = frame.f_globals  # the factor is as exact as Python's numbers
            return _traced_resizing.resize(*args, **named)
        return func(*args, **named)


def trace(module: torch.nn.Module, example: Tensors) -> torch.jit.ScriptModule:
    """Run torch.jit.trace within `traceable`. Raises an exception if the code computes gradients.

    If functions of Python such as int, len and min fix sizes, the model is traced again so that they keep them.
    """
    held = Snapshot(module)  # a module may cache what it computed in a trace
    with Conversions() as conversions:
        traced = _traced(module, example)
    if not conversions.callers:
        return traced
    held.restore()
    try:
        extremes = {"max": _extreme(max, torch.maximum), "min": _extreme(min, torch.minimum)}
        kept = sizes_in_builtins.kept(conversions.callers.values(), _whole, _fraction, **extremes)
        with kept, _rounding(), InFloat64():
            again = _traced(module, example)
        found, usual = (run(*(tensor.clone() for tensor in example)) for run in (again, traced))
        if not all(map(carrying.agree, found, usual)):  # which may be wrong, because its fractions are in float32
            with mixed_dtypes.agreeing(module, example):
                usual = module(*(tensor.clone() for tensor in example))
        return again if all(map(carrying.agree, found, usual)) else traced
    except Exception:  # a module may need Python's own functions
        return traced
    finally:
        held.restore()


def _traced(module: torch.nn.Module, example: Tensors) -> torch.jit.ScriptModule:
    with traceable(module, example), differentiation.refused() as gradients:
        traced: torch.jit.ScriptModule = torch.jit.trace(module, example, strict=False, check_trace=False)
    if gradients:  # the model caught the refusal
        raise RuntimeError(gradients[0])
    return traced


class Conversions(TorchFunctionMode):
    """Finds the modules in which functions of Python turn sizes into numbers while a model is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: dict[int, dict[str, Any]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        converts = func is torch.Tensor.__len__ or (func in _NUMBERS and _of_sizes(args[0], fractions=torch.float32))
        if converts and (frame := source_lines.frame_here()):
            sizes_in_builtins.note(self.callers, frame, sizes_in_builtins.CALLS, sizes_in_builtins.ROUNDING)
        if func is torch.Tensor.__bool__ and _of_sizes(args[0]) and (frame := source_lines.frame_here()):
            sizes_in_builtins.note(self.callers, frame, sizes_in_builtins.EXTREMES)
        return func(*args, **(kwargs or {}))


class InFloat64(TorchFunctionMode):
    """Computes with sizes and fractions in float64, as Python does; torch does so in float32."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        fraction = func in _FRACTIONS or (func in _WITH_FLOATS and any(isinstance(one, float) for one in args))
        if fraction and not named and all(isinstance(one, Number) or _of_sizes(one) for one in args):
            args = tuple(one.double() if isinstance(one, torch.Tensor) else one for one in args)
            if func is torch.Tensor.__rtruediv__:  # torch multiplies by the reciprocal, which rounds twice
                return torch.true_divide(torch.full((), float(args[1]), dtype=torch.float64), args[0])
        return func(*args, **named)


def _of_sizes(value: Any, fractions: torch.dtype = torch.float64) -> bool:
    """Return whether a value is a number or a flag that a trace computes from sizes, or a constant of these dtypes."""
    tracer: Any = torch._C
    scalar = (
        isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in (torch.int64, torch.bool, fractions)
    )
    return scalar and bool(tracer._get_tracing_state()) and not _origins(value)


def _whole(value: Any) -> Any:
    """Return `int(value)` as a tensor if it is a number that the trace computes from sizes; else None."""
    if not _of_sizes(value):
        return None
    return value.trunc().long() if value.is_floating_point() else value.long()


def _fraction(value: Any) -> Any:
    """Return `float(value)` as a tensor if it is a number that the trace computes from sizes; else None."""
    return value.double() if _of_sizes(value) else None


def _extreme(usual: Callable[..., Any], of_tensors: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return `min` or `max` as a function that returns a tensor if it gets numbers that the trace computes from sizes.

    Otherwise the trace keeps the one that is the smallest or largest in the example.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        values = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        others = [one for one in values if not _of_sizes(one)]
        if kwargs or len(others) == len(values) or not all(isinstance(one, Number) for one in others):
            return usual(*args, **kwargs)
        return functools.reduce(of_tensors, map(_as_tensor, values))

    return call


def _as_tensor(number: Any) -> torch.Tensor:
    """Return a number as a tensor that is as exact as Python's numbers."""
    if isinstance(number, torch.Tensor):
        return number
    return torch.full((), number, dtype=torch.float64 if isinstance(number, float) else torch.int64)


def _rounded(size: torch.Tensor, digits: int | None = None) -> torch.Tensor:
    """Return `round(size)`, where a trace has a tensor for a number: a whole number unless there are `digits`."""
    return size.round().long() if digits is None else size.round(decimals=digits)


def _is_integer(size: torch.Tensor) -> bool:
    """Return `size.is_integer()`, where a trace has a tensor for a float."""
    return float(size).is_integer()


@contextlib.contextmanager
def _rounding() -> Iterator[None]:
    """Let math.ceil, math.floor and math.trunc return a tensor for a number that a trace computes from sizes."""

    def rounding(name: str) -> Callable[[torch.Tensor], Any]:
        def call(number: torch.Tensor) -> Any:
            if not _of_sizes(number):
                return getattr(math, name)(float(number))
            return getattr(number, name)().long() if number.is_floating_point() else number

        return call

    with contextlib.ExitStack() as stack:
        for name in ("ceil", "floor", "trunc"):
            stack.enter_context(mock.patch.object(torch.Tensor, f"__{name}__", rounding(name), create=True))
        yield


@contextlib.contextmanager
def _as_numbers() -> Iterator[None]:
    """Give tensors the methods of numbers that they lack."""
    with (
        mock.patch.object(torch.Tensor, "__round__", _rounded, create=True),
        mock.patch.object(torch.Tensor, "is_integer", _is_integer, create=True),
        mock.patch.object(torch.Tensor, "__divmod__", lambda n, m: (n // m, n % m), create=True),
        mock.patch.object(torch.Tensor, "__rdivmod__", lambda m, n: (n // m, n % m), create=True),
    ):
        yield


@contextlib.contextmanager
def traceable(module: torch.nn.Module, example: Tensors) -> Iterator[None]:
    """Change what torch.jit.trace would reject or fix while this module is traced with this example."""
    with (
        _as_numbers(),
        _forward_alone(),
        _checked_sizes(),
        distributions.unchecked(),
        causal_masks.uncompared(),
        mixture_of_experts.dense(module),
        mixed_dtypes.agreeing(module, example),
        padded_encoders.zeroed(),
        sparse_matrices.multiplied(module, natively=True),
        Traceable(),
    ):
        yield


@contextlib.contextmanager
def _checked_sizes() -> Iterator[None]:
    """Let torch._check take a condition on sizes, which is a tensor during a trace; MaxUnpool2d calls it with one."""
    patched: Any = torch
    usual = patched._check_with

    def check(error_type: type[BaseException], condition: Any, message: Any = None) -> None:
        if _of_sizes(condition):
            with warnings.catch_warnings(action="ignore"):
                condition = bool(condition)
        usual(error_type, condition, message)

    with mock.patch.object(torch, "_check_with", check):
        yield


@contextlib.contextmanager
def _forward_alone() -> Iterator[None]:
    """Run only the forward of each torch.autograd.Function: a trace cannot record its call, and needs no gradient."""
    from torch.autograd.function import Function, FunctionCtx

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.setup_context is not Function.setup_context:
            return cls.forward(*args, **kwargs)
        context: Any = FunctionCtx()
        context.needs_input_grad = (False,) * len(args)
        return cls.forward(context, *args, **kwargs)

    patched: Any = Function
    usual = vars(Function)["apply"]
    patched.apply = classmethod(apply)

    def alone(method: Any) -> Any:  # as a module holds it after `scan = Scan.apply`
        bound = method.__self__ if type(method) in (MethodType, BuiltinMethodType) else None
        held = isinstance(bound, type) and issubclass(bound, Function) and method.__name__ == "apply"
        return functools.partial(apply, bound) if held else None

    try:
        with holders.replaced(alone):
            yield
    finally:
        patched.apply = usual


# Operators whose result depends only on an input's shape and dtype, not on its values.
_OF_SHAPES = frozenset((
    "aten::size", "aten::numel", "aten::dim", "aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::new_empty",
    "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::empty_like", "aten::rand_like", "aten::randn_like",
))  # fmt: skip


# Functions that turn a tensor's values into what Python computes with.
_VALUES = frozenset((
    torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__complex__,
    torch.Tensor.__index__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy,
))  # fmt: skip


_NUMBERS = frozenset((torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__float__, torch.Tensor.round))
_FRACTIONS = frozenset((
    torch.Tensor.__truediv__, torch.Tensor.__rtruediv__, torch.Tensor.div, torch.Tensor.true_divide, torch.div,
    torch.true_divide,
))  # fmt: skip
_WITH_FLOATS = frozenset((  # torch computes them in float32 for a whole number and a float
    torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.Tensor.mul, torch.mul, torch.Tensor.__add__,
    torch.Tensor.__radd__, torch.Tensor.add, torch.add, torch.Tensor.__sub__, torch.Tensor.__rsub__, torch.Tensor.sub,
    torch.sub, torch.Tensor.__pow__, torch.Tensor.__rpow__, torch.Tensor.pow, torch.pow,
))  # fmt: skip


class Branches(TorchFunctionMode):
    """Finds the lines that branch on the values of the inputs while a model is traced.

    A trace keeps only the side that the example takes. Branches on sizes are not reported: the golden covers those.
    The last `states` inputs are state, whose values change from call to call, perhaps first after more calls than the
    golden makes.
    """

    def __init__(self, states: int = 0) -> None:
        super().__init__()
        self._states = states
        self._found: dict[str, None] = {}
        self._checks: dict[str, None] = {}
        self._of_state: dict[str, None] = {}
        self._read: dict[int, dict[str, None]] = {}  # lines that read the values of an input, counted from the last one
        self._branches: dict[int, dict[str, None]] = {}  # those of them that branch

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _VALUES and (origins := _origins(args[0])):
            frame = sys._getframe(1)
            while frame.f_back and frame.f_code.co_filename == __file__:
                frame = frame.f_back
            file, line = frame.f_code.co_filename, frame.f_lineno
            frames = source_lines.frames_of_model(frame)
            inside = func is not torch.Tensor.__bool__
            check = checks_in_code.asked(frames, inside) if frames and frames[0] is frame else None
            if func is torch.Tensor.__bool__:
                (self._checks if check else self._found)[source_lines.shown(file, line)] = None
            if min(origins) < self._states and not check:
                self._of_state[source_lines.shown(file, line)] = None
            for origin in () if check else origins:
                self._read.setdefault(origin, {})[source_lines.shown(file, line)] = None
                if not inside:
                    self._branches.setdefault(origin, {})[source_lines.shown(file, line)] = None
        return func(*args, **(kwargs or {}))

    def require_no_state(self) -> None:
        """Raise ExportError if the trace depends on the values that the state had in the example."""
        if self._of_state:
            raise ExportError(
                f"Python reads the values of the state ({', '.join(self._of_state)}), but a trace keeps those of the "
                "example",
                "compute with tensors instead: torch.where, index_select; or ship script if it can compile the code",
            )

    def read(self, inputs: int) -> dict[int, str]:
        """Return the lines at which Python reads the values of an input, by its index among this many inputs."""
        return {inputs - 1 - origin: ", ".join(lines) for origin, lines in self._read.items()}

    def branches(self, inputs: int) -> dict[int, str]:
        """Return the lines that branch on the values of an input, by its index among this many inputs."""
        return {inputs - 1 - origin: ", ".join(lines) for origin, lines in self._branches.items()}

    def notes(self) -> tuple[str, ...]:
        """Return notes on the branches and checks found, for the row."""
        notes = []
        if self._found:
            found = ", ".join(self._found)
            notes.append(f"a branch depends on values ({found}): the trace keeps the side that the example takes")
        if self._checks:
            found = ", ".join(self._checks)
            notes.append(f"the trace leaves out checks of values ({found}), where eager may raise or warn")
        return tuple(notes)


def _origins(tensor: torch.Tensor) -> set[int]:
    """Return the inputs whose values the trace computes the tensor from, counted from the last one, which is 0.

    Inputs of which it uses only the sizes are left out, like weights and constants.
    """
    tracer: Any = torch._C
    if not tracer._get_tracing_state():  # _get_value_trace would then crash the process
        return set()
    try:
        values = [tracer._get_value_trace(tensor)]
    except RuntimeError:  # it is not part of the trace
        return set()
    found, seen = set(), set()
    while values:
        value = values.pop()
        node = value.node()
        if node.kind() == "prim::Param" and value.isCompleteTensor():
            names = [one.debugName() for one in node.outputs()]
            found.add(len(names) - 1 - names.index(value.debugName()))
        elif node.kind() not in _OF_SHAPES and value.debugName() not in seen:
            seen.add(value.debugName())
            values += node.inputs()
    return found


@contextlib.contextmanager
def warned() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of a block; those raised through Traceable get the line of the caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def keep(message: Any, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
            frame = sys._getframe(1) if filename == __file__ else None
            while frame and frame.f_code.co_filename in (__file__, warnings.__file__):
                frame = frame.f_back
            place = (frame.f_code.co_filename, frame.f_lineno) if frame else (filename, lineno)
            caught.append(warnings.WarningMessage(message, category, *place))

        patched: Any = warnings
        patched.showwarning = keep
        yield caught


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype == torch.int64


def _has_tensor(data: Any) -> bool:
    """Return whether nested lists of numbers contain sizes, or other numbers that are tensors during a trace."""
    return isinstance(data, (list, tuple)) and any(isinstance(one, torch.Tensor) or _has_tensor(one) for one in data)


def _flat(data: Any) -> Iterator[Any]:
    if not isinstance(data, (list, tuple)):
        yield data
        return
    for one in data:
        yield from _flat(one)


def _tensors(data: Any) -> Iterator[torch.Tensor]:
    return (one for one in _flat(data) if isinstance(one, torch.Tensor))


def _stacked(constant: torch.Tensor, data: Any) -> torch.Tensor:
    """Return `constant`, a tensor made of these nested lists of numbers, in terms of the tensors among the numbers."""
    dtype, device = constant.dtype, constant.device

    def scalar(one: Any) -> torch.Tensor:
        if isinstance(one, torch.Tensor):
            return one.to(device, dtype).reshape(())
        return torch.full((), _number(one), dtype=dtype, device=device)

    return torch.stack(list(map(scalar, _flat(data)))).reshape(constant.shape)


def _beside(tensor: torch.Tensor, limit: Any) -> Any:
    """Return a limit of the tensor's values; one that is a size on the CPU is moved to the tensor's device."""
    return limit.to(tensor.device) if _is_size(limit) else limit


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _tensor(value: Any) -> Any:
    return torch.full((), int(value), dtype=torch.bool) if isinstance(value, bool) else value


def _full(args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `torch.full` with a number for a bool, and the dtype that the bool implies."""
    value = args[1] if len(args) > 1 else named.get("fill_value")
    if not isinstance(value, bool):
        return args, dict(named)
    return args[:1], {**named, "fill_value": int(value), "dtype": named.get("dtype") or torch.bool}
