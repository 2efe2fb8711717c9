"""Translations to ONNX of operators for which torch has none, or a wrong one."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

MODULES = (
    *("attention", "bits", "cumulative", "diagonals", "elementwise", "fourier", "limits", "losses", "numbers"),
    *("pooling", "reductions", "repeating", "resizing", "sampling", "special"),
)  # that have translations, too
FLOAT, UINT8, INT32, INT64, BOOL, DOUBLE = 1, 2, 6, 7, 9, 11  # ONNX's numbers of data types


def table(opset: int | None = None) -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    from exporter.targets import _onnx_attention

    others = [importlib.import_module(f"exporter.targets._onnx_{name}") for name in MODULES]
    found = dict(itertools.chain(_table().items(), *(other.table().items() for other in others)))
    if opset is not None and opset >= _onnx_attention.ATTENTION_OPSET:
        return {operator: found[operator] for operator in found if operator not in _onnx_attention.table()}
    return found


def _table() -> dict[Any, Callable[..., Any]]:
    import torch
    from onnxscript import ir, opset18
    from onnxscript.function_libs.torch_lib.ops import common, core

    from exporter.targets import _onnx_limits

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

    def sort(inp: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        ops: Any = opset18  # of equal values, TopK takes the one with the lower index first
        if not inp.shape:
            return ops.Identity(inp), ops.Constant(value_int=0)
        size = ops.Gather(ops.Shape(inp), ops.Constant(value_ints=[dim]), axis=0)
        given = ops.Cast(inp, to=UINT8) if inp.dtype == BOOL else inp
        if not inp.dtype.is_floating_point():
            values, order = ops.TopK(given, size, axis=dim, largest=int(descending), sorted=1)
            return ops.CastLike(values, inp), order
        known = ops.Where(ops.IsNaN(inp), common.constant(math.inf, dtype=inp.dtype), inp)  # TopK loses NaN
        _, order = ops.TopK(known, size, axis=dim, largest=int(descending), sorted=1)
        return ops.GatherElements(inp, order, axis=dim), order

    def sort_default(inp: Any, dim: int = -1, descending: bool = False) -> Any:
        return sort(inp, None, dim, descending)

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

    def masked_select(inp: Any, mask: Any) -> Any:
        ops: Any = opset18
        flat = ops.Constant(value_ints=[-1])
        chosen = ops.Reshape(ops.Expand(mask, ops.Shape(inp)), flat)
        return ops.Compress(ops.Reshape(ops.Expand(inp, ops.Shape(mask)), flat), chosen)

    def source_part(inp: Any, index: Any, src: Any) -> Any:
        if not inp.shape or (index.shape is not None and index.shape == src.shape):
            return src
        ops: Any = opset18  # torch reads no more of the source than the index has elements
        part = ops.Slice(src, ops.Constant(value_ints=[0] * len(inp.shape)), ops.Shape(index))
        part.shape, part.dtype = ir.Shape([None] * len(inp.shape)), src.dtype
        return part

    def scatter_by(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(inp: Any, dim: int, index: Any, src: Any, *settings: Any, **named: Any) -> Any:
            return usual(inp, dim, index, source_part(inp, index, src), *settings, **named)

        return call

    def scatter_reduced(inp: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
        if reduce in ("amax", "amin") and not include_self and inp.shape and inp.dtype.is_floating_point():
            return _onnx_limits.scatter_extreme(inp, dim, index, src, reduce)
        if reduce != "mean":  # of which torch's translation keeps the last element
            return core.aten_scatter_reduce(inp, dim, index, src, reduce, include_self)
        if not inp.shape or not inp.dtype.is_floating_point():
            raise ValueError("scatter_reduce of means has a translation for floating-point tensors only")
        ops: Any = opset18
        zero, one = (common.constant(number, dtype=inp.dtype) for number in (0.0, 1.0))
        zeros, ones = ops.Expand(zero, ops.Shape(inp)), ops.Expand(one, ops.Shape(index))
        total, count = (ops.ScatterElements(zeros, index, part, axis=dim, reduction="add") for part in (src, ones))
        if include_self:
            return ops.Div(ops.Add(inp, total), ops.Add(count, one))
        return ops.Where(ops.Equal(count, zero), inp, ops.Div(total, ops.Max(count, one)))

    def scatter_reduce(inp: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
        ops: Any = opset18
        how = {"add": "add", "multiply": "mul"}[reduce]
        if isinstance(src, (int, float)):
            given = ops.Expand(common.constant(src, dtype=inp.dtype), ops.Shape(index))
        else:
            given = source_part(inp, index, src)
        return ops.ScatterElements(inp, index, given, axis=dim, reduction=how)

    def no_info() -> Any:
        ops: Any = opset18
        return ops.Constant(value_int=0)

    def inv(inp: Any, check_errors: bool = False) -> Any:
        return _inverse(inp), no_info()

    def solve(one: Any, other: Any, left: bool = True, check_errors: bool = False) -> Any:
        ops: Any = opset18
        inverse, last = _inverse(one), ops.Constant(value_ints=[-1])
        if len(other.shape) == 1 or tuple(other.shape) == tuple(one.shape)[:-1]:  # a vector, or one for each matrix
            found = ops.Squeeze(ops.MatMul(inverse, ops.Unsqueeze(other, last)), last)
        else:
            found = ops.MatMul(inverse, other) if left else ops.MatMul(other, inverse)
        return found, one, no_info(), no_info()

    def check_errors(*_: Any) -> None:
        """Stand for what `_onnx_preparing` removes."""

    return {
        torch.ops.aten._linalg_check_errors.default: check_errors,
        torch.ops.aten.masked_select.default: masked_select,
        torch.ops.aten.scatter.reduce: scatter_reduce,
        torch.ops.aten.scatter.value_reduce: scatter_reduce,
        torch.ops.aten.scatter.src: scatter_by(core.aten_scatter_src),
        torch.ops.aten.scatter_add.default: scatter_by(core.aten_scatter_add),
        torch.ops.aten.scatter_reduce.two: scatter_by(scatter_reduced),
        torch.ops.aten.linalg_inv_ex.default: inv,
        torch.ops.aten._linalg_solve_ex.default: solve,
        torch.ops.aten.scalar_tensor.default: scalar_tensor,
        torch.ops.aten.kthvalue.default: kthvalue,
        torch.ops.aten.sort.default: sort_default,
        torch.ops.aten.sort.stable: sort,
        torch.ops.aten.rnn_tanh.input: rnn_tanh,
        torch.ops.aten.rnn_relu.input: rnn_relu,
        torch.ops.aten.lstm.input: _lstm,
        torch.ops.aten._cdist_forward.default: cdist,
        torch.ops.aten.rrelu_with_noise_functional.default: rrelu,
        torch.ops.aten.squeeze.dim: squeeze,
        torch.ops.prims.prod.default: prod,  # torch decomposes cumprod into products
        torch.ops.aten.median.default: median,
        torch.ops.aten.median.dim: median_dim,
        torch.ops.aten.searchsorted.Tensor: searchsorted,
        torch.ops.aten.bucketize.Tensor: bucketize,
    }


def _inverse(matrix: Any) -> Any:
    """Invert matrices with onnxruntime's own operator; ONNX has none."""
    from onnxscript import evaluator, ir

    recorder: Any = evaluator.default()
    found = ir.Value(name=None, shape=ir.Shape(matrix.shape), type=ir.TensorType(matrix.dtype))
    recorder.nodes.append(ir.Node("com.microsoft", "Inverse", [matrix], outputs=[found]))
    return found


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
