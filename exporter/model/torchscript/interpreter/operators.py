"""Python implementations of the nodes of a TorchScript graph.

Dispatcher operators are called directly. Operators that only TorchScript has work on Python values, which may be
symbolic sizes; they become Python operators, so that torch.export sees the arithmetic and keeps sizes dynamic.

This file is long because it is a table of operators.
"""

from __future__ import annotations

import builtins
import math
import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.model.torchscript.interpreter.numbers import (
    NUMBERS,
    Number,
    Predicate,
    as_python,
    as_tensor,
    item,
    number,
    to_bool,
    to_float,
    to_int,
)

Handler = Callable[..., Any]

# The numbers of c10::ScalarType, Layout and MemoryFormat in a graph.
DTYPES = {
    **dict(
        enumerate(
            (
                torch.uint8,
                torch.int8,
                torch.int16,
                torch.int32,
                torch.int64,
                torch.float16,
                torch.float32,
                torch.float64,
                torch.complex32,
                torch.complex64,
                torch.complex128,
                torch.bool,
                torch.qint8,
                torch.quint8,
                torch.qint32,
                torch.bfloat16,
            )
        )
    ),
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    27: torch.uint16,
    28: torch.uint32,
    29: torch.uint64,
}
LAYOUTS = {0: torch.strided, 1: torch.sparse_coo}
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "IntType": (int, torch.SymInt),
    "FloatType": (float, torch.SymFloat),
    "BoolType": (bool, torch.SymBool, Predicate),
    "StringType": (str,),
    "NoneType": (type(None),),
    "DeviceObjType": (torch.device,),
}
MEMORY_FORMATS = dict(
    enumerate((torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d))
)


@dataclass(frozen=True)
class Operator:
    """A node as a function of its inputs; a `pure` one has no side effects."""

    run: Handler
    pure: bool = True


def find(kind: str, schema: str) -> Operator | None:
    """Return the operator for a node's kind and schema, or None."""
    if kind in STRUCTURE:
        return Operator(STRUCTURE[kind])
    if kind in SIZES:
        return Operator(SIZES[kind])
    if kind in CURRENT:
        return Operator(CURRENT[kind])
    overload = _overload(schema)
    if overload is not None and torch._C._dispatch_has_kernel(schema.partition("(")[0]):
        return Operator(_dispatched(kind, overload), not overload._schema.is_mutable)
    for known in (name(kind, schema), kind):
        if known in PYTHON:
            return Operator(PYTHON[known], kind not in CHANGING)
    if overload is not None and "..." not in schema and _is_scalar(overload):
        return Operator(overload)
    return None


def _is_scalar(overload: Any) -> bool:
    """Return whether TorchScript's kernel can be called: it copies lists and returns nothing symbolic."""
    return all(str(argument.type) in SCALARS for argument in overload._schema.arguments)


def name(kind: str, schema: str) -> str:
    """Return a node's name: its operator with the overload if it has a schema, else its kind."""
    return schema.partition("(")[0] if "::" in schema else kind


def _overload(schema: str) -> Any:
    """Return the overload that a schema names, `ns::name.overload(...)`, or None if torch.ops lacks it."""
    namespace, colons, rest = schema.partition("(")[0].partition("::")
    if not colons:
        return None
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def _dispatched(kind: str, overload: Any) -> Handler:
    arguments = overload._schema.arguments
    converters = [_converter(str(argument.real_type)) for argument in arguments]
    on_numbers = NUMBERS.get(kind)

    def run(*values: Any) -> Any:
        if on_numbers is not None and any(isinstance(v, Number) for v in values) and not _has_tensor(values):
            return on_numbers(*values)
        args, kwargs = [], {}
        for argument, convert, value in zip(arguments, converters, values, strict=True):
            if argument.kwarg_only:
                kwargs[argument.name] = convert(value)
            else:
                args.append(convert(value))
        return overload(*args, **kwargs)

    return run


def _has_tensor(values: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values)


def _converter(kind: str) -> Handler:
    """Return a function that converts a graph's value for an argument of this type."""
    if "Tensor" in kind:
        return as_tensor
    for word, table in (("ScalarType", DTYPES), ("MemoryFormat", MEMORY_FORMATS), ("Layout", LAYOUTS)):
        if word in kind:
            return lambda value: table.get(value, value) if isinstance(value, int) else value
    return as_python


# --- structure ---------------------------------------------------------------------------------------------------


def _same(value: Any, *_: Any) -> Any:
    return value


def is_a(value: Any, kind: Any) -> bool:
    """prim::isinstance. Checks only the first element of a list or dict, because TorchScript's are homogeneous."""
    name: str = kind.kind()
    inner: list[Any] = kind.containedTypes()
    if name == "TensorType":
        return isinstance(value, (torch.Tensor, Number))
    if name == "OptionalType":
        return value is None or is_a(value, inner[0])
    if name == "TupleType":
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(is_a, value, inner))
    if name == "ListType":
        return isinstance(value, list) and all(is_a(element, inner[0]) for element in value[:1])
    if name == "DictType":
        return isinstance(value, dict) and all(is_a(element, inner[1]) for element in [*value.values()][:1])
    return isinstance(value, PYTHON_TYPES.get(name, ())) and not (name == "IntType" and isinstance(value, bool))


def _pairs(*values: Any) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _dtype_number(value: Any) -> int:
    return next(number for number, dtype in DTYPES.items() if dtype == value.dtype)


def _of_tensor(attribute: str) -> Handler:
    return lambda value: getattr(as_tensor(value), attribute)


STRUCTURE: dict[str, Handler] = {
    "prim::ListConstruct": lambda *values: list(values),
    "prim::TupleConstruct": lambda *values: values,
    "prim::DictConstruct": _pairs,
    "prim::ListUnpack": tuple,
    "prim::TupleUnpack": tuple,
    "prim::TupleIndex": operator.getitem,
    "prim::NumToTensor": number,
    "prim::Uninitialized": lambda: None,
    "prim::unchecked_cast": _same,
    "prim::unchecked_unwrap_optional": _same,
    "prim::annotate": _same,
    "prim::data": _same,
    "prim::tolist": lambda value, *_: as_tensor(value).tolist(),
    "prim::Print": lambda *_: None,
    "prim::CreateObject": types.SimpleNamespace,
    "prim::dtype": _dtype_number,
    "prim::layout": lambda value: 0,
    # As in training: later compilers do not support the fused inference-only kernels.
    "prim::requires_grad": lambda value: True,
    "prim::type": lambda device: device.type,
    "prim::index": lambda device: device.index,
    **{
        f"prim::{name}": _of_tensor(name)
        for name in (
            *("device", "itemsize", "is_cuda", "is_cpu", "is_mps", "is_xpu", "is_meta"),
            *("is_quantized", "is_sparse", "is_sparse_csr", "is_mkldnn", "is_nested"),
        )
    },
}


# Operators of traces that other compilers know under another name. Backend flags are omitted.
CURRENT: dict[str, Handler] = {
    "aten::_convolution": lambda *values: torch.ops.aten.convolution.default(*values[:9]),
}


# --- sizes; the dispatcher's versions would make them plain numbers ---------------------------------------------


def _size(value: Any, axis: int | None = None) -> Any:
    shape = as_tensor(value).shape
    return list(shape) if axis is None else shape[axis]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) else len(value)


SIZES: dict[str, Handler] = {
    "aten::size": _size,
    "aten::sym_size": _size,
    "aten::dim": lambda value: as_tensor(value).dim(),
    "aten::numel": lambda value: as_tensor(value).numel(),
    "aten::len": _length,
    "aten::item": item,
    "aten::Int": to_int,
    "aten::Float": to_float,
    "aten::Bool": to_bool,
    "aten::IntImplicit": to_int,
    "aten::FloatImplicit": to_float,
    "aten::ScalarImplicit": item,
    "aten::is_grad_enabled": lambda: True,
}


# --- what only TorchScript has -----------------------------------------------------------------------------------


def _not(value: Any) -> Any:
    if isinstance(value, Predicate):
        return Predicate(torch.logical_not(value.tensor))
    return torch.sym_not(value) if isinstance(value, torch.SymBool) else not value


def _set_item(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _changed(method: str) -> Handler:
    """Return a handler that calls a mutating method of a container and returns the container."""

    def run(container: Any, *arguments: Any) -> Any:
        getattr(container, method)(*arguments)
        return container

    return run


def _delete(container: Any, key: Any) -> None:
    del container[key]


def _slice(value: Any, start: int | None, end: int | None, step: int) -> Any:
    return value[slice(start, end, step)]


def _extreme(of_two: Handler, of_list: Handler) -> Handler:
    return lambda a, b=None: of_list(a) if b is None else of_two(a, b)


def _range_length(low: Any, high: Any, step: int) -> Any:
    return torch.sym_max(0, (high - low + step - 1) // step if step > 0 else (low - high - step - 1) // -step)


def _tensor(data: Any, dtype: int | None, device: torch.device | None, *_: Any) -> torch.Tensor:
    kind = None if dtype is None else DTYPES[dtype]
    if isinstance(data, torch.Tensor):
        return data.to(device=device, dtype=kind)
    if _is_symbolic(data):
        made = torch.stack([_tensor(item, dtype, device) for item in data]) if isinstance(data, list) else None
        return number(data).tensor().to(device=device, dtype=kind) if made is None else made
    return torch.tensor(data, dtype=kind, device=device)


def _is_symbolic(data: Any) -> bool:
    if isinstance(data, list):
        return any(map(_is_symbolic, data))
    return isinstance(data, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _to(value: Any, *arguments: Any) -> Any:
    """Implement TorchScript's own overloads: to(other), to(device, dtype), to(dtype), each followed by two flags."""
    *what, non_blocking, copy = arguments
    if what and isinstance(what[0], torch.Tensor):
        return as_tensor(value).to(what[0], non_blocking=non_blocking, copy=copy)
    device = next((item for item in what if isinstance(item, torch.device)), None)
    dtype = next((DTYPES[item] for item in what if isinstance(item, int)), None)
    return as_tensor(value).to(device=device, dtype=dtype, non_blocking=non_blocking, copy=copy)


PYTHON: dict[str, Handler] = {
    **{
        f"aten::{name}": getattr(operator, name)
        for name in ("add", "sub", "mul", "floordiv", "neg", "eq", "ne", "lt", "le", "gt", "ge")
    },
    "aten::add_": operator.iadd,
    "aten::mul_": operator.imul,
    "aten::div": operator.truediv,
    "aten::remainder": operator.mod,
    "aten::pow": lambda base, exponent: to_float(base) ** exponent,
    "aten::pow.int_to_int": operator.pow,
    "aten::ceil": math.ceil,
    "aten::floor": math.floor,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__not__": _not,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__getitem__": operator.getitem,
    "aten::__contains__": operator.contains,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::slice": _slice,
    "aten::list": list,
    "aten::dict": dict,
    "aten::copy": lambda value: value.copy(),
    "aten::keys": lambda value: list(value.keys()),
    "aten::values": lambda value: list(value.values()),
    "aten::items": lambda value: list(value.items()),
    "aten::get": lambda value, key, default=None: value.get(key, default),
    "aten::index": lambda value, item: value.index(item),
    "aten::count": lambda value, item: value.count(item),
    "aten::sum": builtins.sum,
    "aten::any": builtins.any,
    "aten::all": builtins.all,
    "aten::sorted": builtins.sorted,
    "aten::str": str,
    "aten::format": lambda text, *values: text.format(*values),
    "aten::percentFormat": lambda text, *values: text % values,
    "aten::warn": lambda *_: None,
    "aten::tensor": _tensor,
    "aten::as_tensor": _tensor,
    "aten::to": _to,
    "aten::cpu": lambda value: as_tensor(value).cpu(),
    "aten::copy_": lambda value, other: as_tensor(value).copy_(torch.as_tensor(as_tensor(other))),
    "aten::_unwrap_optional": _same,
    "aten::append": _changed("append"),
    "aten::extend": _changed("extend"),
    "aten::insert": _changed("insert"),
    "aten::clear": _changed("clear"),
    "aten::reverse": _changed("reverse"),
    "aten::update": _changed("update"),
    "aten::pop": lambda value, *arguments: value.pop(*arguments),
    "aten::_set_item": _set_item,
    "aten::Delete": _delete,
    "prim::min": _extreme(torch.sym_min, builtins.min),
    "prim::max": _extreme(torch.sym_max, builtins.max),
    "prim::abs": abs,
}
CHANGING = {
    f"aten::{name}"
    for name in (
        *("append", "extend", "insert", "clear", "reverse", "update", "pop"),
        *("_set_item", "Delete", "add_", "mul_", "copy_"),
    )
}
SCALARS = {"int", "float", "bool", "number", "Scalar", "str", "complex", "Optional[int]", "Optional[float]"}
