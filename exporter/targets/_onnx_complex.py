"""Operators of complex numbers that torch cannot translate to ONNX, in terms of those that it can.

ONNX has no complex numbers: torch represents them by pairs, in a last dimension of size 2. It translates arithmetic,
Fourier transforms and some changes of shape so, but not `reshape`, `select`, `where` and others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._export import utils as _utils
from torch.utils import _pytree as pytree

Function = Callable[..., Any]
aten = torch.ops.aten


def has(program: torch.export.ExportedProgram) -> bool:
    """Return whether a program computes with complex numbers."""
    return any(map(_is_complex, program.graph.nodes))


def _is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(one, torch.Tensor) and one.is_complex() for one in values)


def in_pairs(program: torch.export.ExportedProgram, table: Mapping[Any, Function]) -> torch.export.ExportedProgram:
    """Return a program decomposed by this table and the rules. Raises an exception of any type if a rule fails."""
    decompositions = {target: _of_complex(target, rule) for target, rule in RULES.items()}
    made: torch.export.ExportedProgram = program.run_decompositions({**table, **decompositions})
    for node in made.graph.nodes:
        if node.target is aten.sym_size.int and _is_complex(node.args[0]):
            with made.graph.inserting_before(node):
                pairs = made.graph.call_function(aten.view_as_real.default, node.args[:1])
            pairs.meta = {**node.args[0].meta, "val": torch.view_as_real(node.args[0].meta["val"])}
            node.replace_input_with(node.args[0], pairs)
    return made


def _means_complex(argument: Any) -> bool:
    if isinstance(argument, torch.dtype):
        return argument.is_complex
    return isinstance(argument, complex) or (isinstance(argument, torch.Tensor) and argument.is_complex())


def _of_complex(target: Any, rule: Function) -> Function:
    """Return the rule as a decomposition; of real numbers, only a composite operator is decomposed, as torch does."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if any(map(_means_complex, pytree.tree_leaves((args, kwargs)))):
            return rule(*args, **kwargs)
        return target._op_dk(composite, *args, **kwargs) if _utils._is_cia_op(target) else NotImplemented

    return decompose


def _pairs(number: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(number)


def _number(pairs: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(pairs.contiguous())


def _shaped(operator: Function) -> Function:
    """Return an operator whose second argument is a shape."""
    return lambda number, shape, **_: _number(operator(_pairs(number), [*shape, 2]))


def _along(operator: Function, added: int = 0) -> Function:
    """Return an operator whose second argument is a dimension of the operand, or of the result with `added` ones."""

    return lambda number, dim, *rest: _number(operator(_pairs(number), dim % (number.dim() + added), *rest))


def _split(operator: Function) -> Function:
    """Return an operator that has several results, and whose last argument is a dimension."""

    def call(number: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
        count = len(operator._schema.arguments) - 1  # type: ignore[attr-defined]
        *given, dim = args if len(args) == count else (*args, 0)
        return tuple(map(_number, operator(_pairs(number), *given, dim % number.dim())))

    return call


def _chosen(number: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    return _number(aten.index.Tensor(_pairs(number), list(indices)))


def _squeezed(number: torch.Tensor) -> torch.Tensor:
    return _squeezed_along(number, range(number.dim()))


def _squeezed_along(number: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    pairs = _pairs(number)
    for dim in sorted((one % number.dim() for one in dims), reverse=True):
        pairs = aten.squeeze.dim(pairs, dim)
    return _number(pairs)


def _rolled(number: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return NotImplemented
    pairs = _pairs(number)
    for shift, dim in zip(shifts, dims, strict=True):
        size = number.shape[dim]
        before = size - shift % size
        ends = pairs.narrow(dim % number.dim(), before, size - before), pairs.narrow(dim % number.dim(), 0, before)
        pairs = torch.cat(ends, dim % number.dim())
    return _number(pairs)


def _padded(number: torch.Tensor, pad: Sequence[Any], mode: Any = "constant", value: Any = None) -> torch.Tensor:
    if mode != "constant" or value:
        raise NotImplementedError
    return _number(aten.constant_pad_nd(_pairs(number), [0, 0, *pad]))


def _filled(number: torch.Tensor, mask: torch.Tensor, value: complex) -> torch.Tensor:
    parts = (torch.full_like(number.real, one) for one in (complex(value).real, complex(value).imag))
    return _where(mask, torch.complex(*parts), number)


def _where(condition: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dtype = torch.result_type(one, other)
    one, other = (t.to(dtype) for t in (one, other))
    return _number(aten.where.self(condition.unsqueeze(-1), _pairs(one), _pairs(other)))


def _by_scalar(operator: Function) -> Function:
    """Return a rule for a sum, a difference or a product with a complex number of Python, and for nothing else."""

    def call(tensor: torch.Tensor, number: Any) -> Any:
        if not isinstance(number, complex):
            return NotImplemented
        real = tensor.real.dtype if tensor.is_complex() else tensor.dtype
        parts = (torch.full((), one, dtype=real, device=tensor.device) for one in (number.real, number.imag))
        return operator(tensor, torch.complex(*parts))

    return call


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply a real or complex tensor by a complex number in a tensor without dimensions."""
    if one.is_complex() and other.is_complex():
        return one * other
    number, factor = (one, other) if one.is_complex() else (other, one)
    return _number(_pairs(number) * factor.unsqueeze(-1))


def _power(number: torch.Tensor, exponent: Any) -> torch.Tensor:
    if exponent == 2:
        return number * number
    if isinstance(exponent, complex):
        raise NotImplementedError
    return torch.polar(number.abs() ** exponent, _angle(number) * exponent)


def _angle(number: torch.Tensor) -> torch.Tensor:
    return torch.atan2(number.imag, number.real)


def _full(size: Sequence[Any], number: Any, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Any:
    real = (dtype or torch.complex64).to_real()
    parts = (complex(number).real, complex(number).imag)
    return torch.complex(*(torch.full(size, one, dtype=real, device=device) for one in parts))


def _written(number: torch.Tensor, other: torch.Tensor, *rest: Any) -> torch.Tensor:
    return other.to(number.dtype).expand(number.shape)


def _scattered(operator: Function) -> Function:
    """Return an operator that writes its second argument into a part of the first one, along a dimension."""

    def call(number: torch.Tensor, other: torch.Tensor, dim: int = 0, *rest: Any) -> torch.Tensor:
        return _number(operator(_pairs(number), _pairs(other.to(number.dtype)), dim % number.dim(), *rest))

    return call


def _put(number: torch.Tensor, indices: Any, values: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _number(aten.index_put.default(_pairs(number), list(indices), _pairs(values.to(number.dtype)), *rest))


def _like(number: torch.Tensor, value: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    dtype = dtype or number.dtype
    if dtype.is_complex:
        return _full(number.shape, value, dtype, number.device)
    return torch.full_like(number.real, value, dtype=dtype)


def _einsum(equation: str, operands: Sequence[torch.Tensor], path: Any = None) -> torch.Tensor:
    if len(operands) > 2:
        raise NotImplementedError

    def of(*parts: torch.Tensor) -> torch.Tensor:
        return aten.einsum(equation, parts)  # type: ignore[no-any-return]

    one, *others = operands
    if not others:
        return torch.complex(of(one.real), of(one.imag))
    (other,) = others
    real = of(one.real, other.real) - of(one.imag, other.imag)
    return torch.complex(real, of(one.real, other.imag) + of(one.imag, other.real))


def _parts(operator: Function) -> Function:
    """Return an operator that acts on real and imaginary parts alike, with the same arguments."""
    return lambda number, *args: torch.complex(*(operator(part, *args) for part in (number.real, number.imag)))


RULES: dict[Any, Function] = {
    **{one: _shaped(one) for one in (aten.reshape.default, aten.view.default, aten.expand.default)},
    **{one: _along(one) for one in (aten.select.int, aten.squeeze.dim)},
    **{one: _split(one) for one in (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)},
    **{one: _parts(one) for one in (aten.cumsum.default, aten.gather.default)},
    **{one: _parts(one) for one in (aten.index_select.default, aten.repeat.default)},
    aten.unsqueeze.default: _along(aten.unsqueeze.default, added=1),
    aten.squeeze.default: _squeezed,
    aten.squeeze.dims: _squeezed_along,
    aten.index.Tensor: _chosen,
    aten.roll.default: _rolled,  # torch's translation takes numbers alone
    aten.pad.default: _padded,
    aten.constant_pad_nd.default: lambda number, pad, value=0: _padded(number, pad, value=value),
    aten.masked_fill.Scalar: _filled,
    aten.where.self: _where,
    aten.full_like.default: _like,
    aten.ones_like.default: lambda number, **options: _like(number, 1, **options),
    aten.zeros_like.default: lambda number, **options: _like(number, 0, **options),
    aten.zeros.default: lambda size, **options: _full(size, 0, **options),
    aten.full.default: _full,
    aten.copy.default: _written,
    aten.fill.Tensor: _written,
    aten.fill.Scalar: lambda number, value: _full(number.shape, value, number.dtype, number.device),
    **{one: _scattered(one) for one in (aten.slice_scatter.default, aten.select_scatter.default)},
    aten.index_put.default: _put,
    aten.angle.default: _angle,
    aten.eq.Tensor: lambda one, other: aten.logical_and(one.real == other.real, one.imag == other.imag),
    aten.isnan.default: lambda number: aten.logical_or(number.real.isnan(), number.imag.isnan()),
    **dict.fromkeys((aten.add.Scalar, aten.add.Tensor), _by_scalar(torch.add)),
    **dict.fromkeys((aten.sub.Scalar, aten.sub.Tensor), _by_scalar(torch.sub)),
    **dict.fromkeys((aten.mul.Scalar, aten.mul.Tensor), _by_scalar(_product)),
    aten.pow.Tensor_Scalar: _power,
    aten.sqrt.default: lambda number: torch.polar(number.abs().sqrt(), _angle(number) / 2),
    aten.exp.default: lambda number: torch.polar(number.real.exp(), number.imag),
    aten.log.default: lambda number: torch.complex(number.abs().log(), _angle(number)),
    aten.einsum.default: _einsum,
}
