"""Translations to ONNX of operators for which torch has none, or a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

FLOAT, UINT8, INT32, INT64, BOOL, DOUBLE = 1, 2, 6, 7, 9, 11  # ONNX's numbers of data types


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, core, nn

    def prod(inp: Any, dims: Sequence[int], output_dtype: int = 0) -> Any:
        ops: Any = opset18
        return ops.ReduceProd(inp, ops.Constant(value_ints=dims), keepdims=0)

    def median(inp: Any) -> Any:
        ops: Any = opset18
        return median_dim(ops.Reshape(inp, ops.Constant(value_ints=[-1])), 0)[0]

    def median_dim(inp: Any, dim: int, keepdim: bool = False) -> Any:
        ops: Any = opset18
        size = ops.Gather(ops.Shape(inp), ops.Constant(value_ints=[dim]), axis=0)
        half = ops.Div(ops.Add(size, ops.Constant(value_ints=[1])), ops.Constant(value_ints=[2]))
        smaller = ops.TopK(inp, half, axis=dim, largest=0, sorted=1)  # the median is the largest of these
        last = ops.Sub(half, ops.Constant(value_ints=[1]))
        found = tuple(ops.Gather(one, last, axis=dim) for one in smaller)
        return found if keepdim else tuple(ops.Squeeze(one, ops.Constant(value_ints=[dim])) for one in found)

    def searchsorted(
        sorted_sequence: Any,
        values: Any,
        out_int32: bool = False,
        right: bool = False,
        side: str | None = None,
        sorter: Any = None,
    ) -> Any:
        if sorter is not None:
            raise ValueError("a sorter has no translation")
        ops: Any = opset18
        row = ops.Unsqueeze(sorted_sequence, ops.Constant(value_ints=[-2]))
        column = ops.Unsqueeze(values, ops.Constant(value_ints=[-1]))
        from_right = side == "right" if side else right
        before = ops.Not(ops.Greater(row, column) if from_right else ops.GreaterOrEqual(row, column))  # NaN is last
        dtype = INT32 if out_int32 else INT64
        return ops.ReduceSum(ops.Cast(before, to=dtype), ops.Constant(value_ints=[-1]), keepdims=0)

    def bucketize(inp: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
        return searchsorted(boundaries, inp, out_int32, right)

    def cdist(one: Any, other: Any, p: float = 2.0, compute_mode: int | None = None) -> Any:
        ops: Any = opset18
        last = ops.Constant(value_ints=[-1])
        apart = ops.Sub(
            ops.Unsqueeze(one, ops.Constant(value_ints=[-2])), ops.Unsqueeze(other, ops.Constant(value_ints=[-3]))
        )
        if p in (1.0, 2.0):
            return (ops.ReduceL1 if p == 1.0 else ops.ReduceL2)(apart, last, keepdims=0)
        if p == float("inf"):
            return ops.ReduceMax(ops.Abs(apart), last, keepdims=0)
        if p == 0.0:
            differs = ops.Not(ops.Equal(apart, ops.CastLike(ops.Constant(value_float=0.0), apart)))
            return ops.ReduceSum(ops.CastLike(differs, apart), last, keepdims=0)
        raised = ops.ReduceSum(ops.Pow(ops.Abs(apart), ops.Constant(value_float=p)), last, keepdims=0)
        return ops.Pow(raised, ops.Constant(value_float=1 / p))

    def signbit(inp: Any) -> Any:
        ops: Any = opset18
        if inp.dtype == BOOL:
            return ops.And(inp, ops.Not(inp))
        zero = ops.CastLike(ops.Constant(value_float=0.0), inp)
        negative = ops.Less(inp, zero)
        if not inp.dtype.is_floating_point():
            return negative
        return ops.Or(negative, ops.Less(ops.Reciprocal(inp), zero))  # the reciprocal of -0.0 is -infinity

    def atan2(one: Any, other: Any) -> Any:
        ops: Any = opset18  # torch's translation is -pi, not pi, for 0 and a negative number, and 0 for NaN
        zero, pi = (common.constant(number, dtype=one.dtype) for number in (0.0, math.pi))
        above, right = (ops.Not(ops.Or(ops.Less(x, zero), ops.Less(ops.Reciprocal(x), zero))) for x in (one, other))
        both = ops.And(ops.Equal(one, zero), ops.Equal(other, zero))
        slope = ops.Where(both, one, ops.Div(one, other))
        return ops.Add(ops.Atan(slope), ops.Where(right, zero, ops.Where(above, pi, ops.Neg(pi))))

    def div_mode(one: Any, other: Any, rounding_mode: str | None = None) -> Any:
        if not _are_integers(one, other) or rounding_mode is None:  # torch's translation rounds integers to float32
            return core.aten_div_mode(one, other, rounding_mode)
        ops: Any = opset18
        return ops.Div(one, other) if rounding_mode == "trunc" else _floored(one, other)

    def floor_divide(one: Any, other: Any) -> Any:
        if hasattr(one, "dtype"):
            return div_mode(one, other, "floor")
        ops: Any = opset18
        number = common.constant(one, dtype=other.dtype)
        return _floored(number, other) if other.dtype.is_integer() else ops.Floor(ops.Div(number, other))

    def fmod(one: Any, other: Any) -> Any:
        ops: Any = opset18  # torch's translation computes integers in float64
        if not _are_integers(one, other):
            return ops.Mod(one, other, fmod=1)
        return ops.Sub(one, ops.Mul(ops.Div(one, other), other))

    def remainder(one: Any, other: Any) -> Any:
        ops: Any = opset18  # torch's translation multiplies a rounded quotient
        if not one.dtype.is_floating_point():
            return (
                core.aten_remainder(one, other) if hasattr(other, "dtype") else core.aten_remainder_scalar(one, other)
            )
        rest, zero = ops.Mod(one, other, fmod=1), common.constant(0.0, dtype=one.dtype)
        below = ops.And(ops.Not(ops.Equal(rest, zero)), ops.Xor(ops.Less(rest, zero), ops.Less(other, zero)))
        return ops.Where(below, ops.Add(rest, other), rest)

    def scalar_tensor(number: Any, dtype: int = FLOAT, *options: Any, **named: Any) -> Any:
        if isinstance(number, float) and dtype == DOUBLE:  # torch's translation rounds it to float32 first
            return common.constant(number, dtype=dtype)
        return core.aten_scalar_tensor(number, dtype)

    def rrelu(
        inp: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
    ) -> Any:
        if training:
            raise ValueError("random slopes have no translation")
        ops: Any = opset18
        return ops.LeakyRelu(inp, alpha=(lower + upper) / 2), noise

    def log_sigmoid(inp: Any) -> Any:
        ops: Any = opset18  # torch's translation is -infinity where the sigmoid rounds to 0
        if inp.dtype != DOUBLE:
            return ops.Neg(ops.Softplus(ops.Neg(inp)))  # onnxruntime has no such kernel for float64
        one, zero = (ops.CastLike(ops.Constant(value_float=number), inp) for number in (1.0, 0.0))
        return ops.Sub(ops.Min(inp, zero), ops.Log(ops.Add(one, ops.Exp(ops.Neg(ops.Abs(inp))))))

    def sort(inp: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        ops: Any = opset18  # of equal values, TopK takes the one with the lower index first
        if not inp.shape:
            return ops.Identity(inp), ops.Constant(value_int=0)
        size = ops.Gather(ops.Shape(inp), ops.Constant(value_ints=[dim]), axis=0)
        given = ops.Cast(inp, to=UINT8) if inp.dtype == BOOL else inp
        values, order = ops.TopK(given, size, axis=dim, largest=int(descending), sorted=1)
        return ops.CastLike(values, inp), order

    def kthvalue(inp: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
        ops: Any = opset18
        smallest = ops.TopK(inp, ops.Constant(value_ints=[k]), axis=dim, largest=0, sorted=1)
        found = tuple(ops.Gather(one, ops.Constant(value_ints=[k - 1]), axis=dim) for one in smallest)
        return found if keepdim else tuple(ops.Squeeze(one, ops.Constant(value_ints=[dim])) for one in found)

    def squeeze(inp: Any, dim: int) -> Any:
        ops: Any = opset18  # torch leaves out only a dimension of size 1, and takes a dynamic one as larger
        if inp.shape is not None and (not inp.shape or inp.shape[dim] != 1):
            return ops.Identity(inp)
        return ops.Squeeze(inp, ops.Constant(value_ints=[dim]))

    def rnn_tanh(*arguments: Any) -> tuple[Any, Any]:
        return _recurrent("Tanh", *arguments)

    def rnn_relu(*arguments: Any) -> tuple[Any, Any]:
        return _recurrent("Relu", *arguments)

    def avg_pool2d(inp: Any, kernel_size: Sequence[int], *settings: Any) -> Any:
        return _pool(2, nn.aten_avg_pool2d, inp, kernel_size, *settings)

    def avg_pool3d(inp: Any, kernel_size: Sequence[int], *settings: Any) -> Any:
        return _pool(3, nn.aten_avg_pool3d, inp, kernel_size, *settings)

    return {
        torch.ops.aten.div.Tensor_mode: div_mode,
        torch.ops.aten.div.Scalar_mode: div_mode,
        torch.ops.aten.floor_divide.default: floor_divide,
        torch.ops.aten.fmod.Tensor: fmod,
        torch.ops.aten.fmod.Scalar: fmod,
        torch.ops.aten.remainder.Tensor: remainder,
        torch.ops.aten.remainder.Scalar: remainder,
        torch.ops.aten.scalar_tensor.default: scalar_tensor,
        torch.ops.aten.kthvalue.default: kthvalue,
        torch.ops.aten.atan2.default: atan2,
        torch.ops.aten.log_sigmoid.default: log_sigmoid,
        torch.ops.aten.sort.stable: sort,
        torch.ops.aten.rnn_tanh.input: rnn_tanh,
        torch.ops.aten.rnn_relu.input: rnn_relu,
        torch.ops.aten.lstm.input: _lstm,
        torch.ops.aten._cdist_forward.default: cdist,
        torch.ops.aten.signbit.default: signbit,  # torch's translation overlooks -0.0
        torch.ops.prims.signbit.default: signbit,
        torch.ops.aten.rrelu_with_noise_functional.default: rrelu,
        torch.ops.aten.avg_pool2d.default: avg_pool2d,
        torch.ops.aten.avg_pool3d.default: avg_pool3d,
        torch.ops.aten.squeeze.dim: squeeze,
        torch.ops.prims.prod.default: prod,  # torch decomposes cumprod into products
        torch.ops.aten.median.default: median,
        torch.ops.aten.median.dim: median_dim,
        torch.ops.aten.searchsorted.Tensor: searchsorted,
        torch.ops.aten.bucketize.Tensor: bucketize,
    }


def _are_integers(one: Any, other: Any) -> bool:
    """Return whether a tensor and a tensor or number are integers."""
    return one.dtype.is_integer() and (isinstance(other, int) or (hasattr(other, "dtype") and other.dtype == one.dtype))


def _floored(one: Any, other: Any) -> Any:
    """Divide integers, rounding towards minus infinity."""
    from onnxscript import opset18

    ops: Any = opset18
    whole = ops.Div(one, other)
    zero, lower = (ops.CastLike(ops.Constant(value_int=number), whole) for number in (0, 1))
    rest = ops.Sub(one, ops.Mul(whole, other))
    below = ops.And(ops.Not(ops.Equal(rest, zero)), ops.Xor(ops.Less(rest, zero), ops.Less(other, zero)))
    return ops.Where(below, ops.Sub(whole, lower), whole)


def _pool(dims: int, usual: Callable[..., Any], inp: Any, kernel_size: Sequence[int], *settings: Any) -> Any:
    """Translate the mean over windows, with a divisor of its own, which torch's translation ignores."""
    from onnxscript import opset18

    names = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = dict(zip(names, settings, strict=False))
    divisor = given.pop("divisor_override", None)
    if divisor is None:
        return usual(inp, kernel_size, **given)
    if given.get("ceil_mode"):  # windows that end outside the padding have another size
        raise ValueError("a divisor with ceil_mode has no translation")
    ops: Any = opset18
    mean = usual(inp, kernel_size, **(given | {"count_include_pad": True}))
    elements = math.prod(kernel_size) if len(kernel_size) > 1 else kernel_size[0] ** dims
    return ops.Mul(mean, ops.CastLike(ops.Constant(value_float=elements / divisor), mean))


def _recurrent(
    activation: str,
    inp: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, Any]:
    """Translate the layers of a plain recurrent network, each to one node for both directions."""
    from onnxscript import opset18

    ops: Any = opset18
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    x = ops.Transpose(inp, perm=[1, 0, 2]) if batch_first else inp
    states = []
    for layer in range(num_layers):
        weights = [params[(layer * directions + one) * each :][:each] for one in range(directions)]

        def stacked(at: int, weights: list[Any] = weights) -> Any:
            first = ops.Constant(value_ints=[0])
            return ops.Concat(*(ops.Unsqueeze(given[at], first) for given in weights), axis=0)

        begin, end = ops.Constant(value_ints=[layer * directions]), ops.Constant(value_ints=[(layer + 1) * directions])
        y, state = ops.RNN(
            x,
            stacked(0),
            stacked(1),
            ops.Concat(stacked(2), stacked(3), axis=1) if has_biases else None,
            None,
            ops.Slice(hx, begin, end, ops.Constant(value_ints=[0])),
            activations=[activation] * directions,
            direction="bidirectional" if bidirectional else "forward",
            hidden_size=params[1].shape[1],
        )
        x = ops.Reshape(ops.Transpose(y, perm=[0, 2, 1, 3]), ops.Constant(value_ints=[0, 0, -1]))
        states.append(state)
    return ops.Transpose(x, perm=[1, 0, 2]) if batch_first else x, ops.Concat(*states, axis=0)


def _lstm(inp: Any, hx: Sequence[Any], params: Sequence[Any], *settings: Any, **named: Any) -> Any:
    """Translate LSTM layers as torch does, but refuse those with projections, which it translates wrongly."""
    from onnxscript.function_libs.torch_lib.ops import core

    if hx[0].shape[2] != hx[1].shape[2]:
        raise ValueError("ONNX's LSTM has no projections (proj_size)")
    return core.aten_lstm(inp, hx, params, *settings, **named)
