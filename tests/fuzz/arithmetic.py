"""Statements that compute: broadcasting arithmetic, comparisons, reductions, products, order."""

from __future__ import annotations

from fuzz.sketch import DoesNotRun, Sketch, Value


def _floating(sketch: Sketch, rank: int = 0) -> Value:
    return sketch.pick(lambda v: v.floating and v.rank >= rank)


def binary(sketch: Sketch) -> None:
    one = _floating(sketch)
    other = sketch.pick(lambda v: v.floating or v.dtype in (int, float))
    forms = ["{0} + {1}", "{0} * {1}", "{0} - {1}", "{1} - 0.5 * {0}"]
    if other.tensor:
        forms += ["{0} / ({1}.abs() + 1)", "torch.maximum({0}, {1})", "torch.atan2({0}, {1}.abs() + 1)"]
        forms += ["torch.lerp({0}, {1}, 0.25)", "torch.addcmul({0}, {0}, {1}, value=0.5)", "torch.hypot({0}, {1})"]
    else:
        forms += ["torch.add({0}, 1, alpha={1})", "{0}.clamp(max={1})"]
    sketch.let(sketch.choose(*forms).format(one, other))


def unary(sketch: Sketch) -> None:
    forms = (
        *("{0}.abs()", "{0} ** 2", "-{0}", "torch.exp(-{0}.abs())", "torch.sqrt({0}.abs() + 1)"),
        *("{0}.sin()", "{0} * 0.5"),
        *("torch.rsqrt({0} * {0} + 1)", "torch.log1p({0}.abs())", "torch.erf({0})", "1 / (1 + {0} * {0})", "{0} ** 3"),
        *("{0}.clamp(-0.5, 0.5)", "{0}.clamp(min=0.1)", "torch.square({0})", "torch.reciprocal({0}.abs() + 1)"),
    )
    sketch.let(sketch.choose(*forms).format(_floating(sketch)))


def unary_with_steps(sketch: Sketch) -> None:
    """Functions with steps. Away from the steps, rounding does not matter."""
    value = _floating(sketch)
    form = sketch.choose("{0}.sign()", "torch.floor({0})", "({0} * 2).round()", "torch.trunc({0})", "{0}.ceil()")
    sketch.let(form.format(value))


def reduction(sketch: Sketch) -> None:
    value = _floating(sketch, 1)
    axis = sketch.axis(value)
    keep = sketch.choose("", ", keepdim=True")
    form = sketch.choose(
        *("{0}.mean({1}{2})", "{0}.sum({1}{2})", "{0}.amax({1}{2})", "{0}.amin({1}{2})", "{0}.norm(dim={1}{2})"),
        *("{0}.logsumexp({1}{2})", "{0}.var({1}, unbiased=False{2})", "{0}.max({1}{2})[0]", "({0} * 0.5).prod({1}{2})"),
        *("{0}.std({1}, correction=0{2})", "{0}.min(dim={1}{2}).values", "torch.linalg.vector_norm({0}, dim={1}{2})"),
    )
    sketch.let(form.format(value, axis, keep))


def whole_reduction(sketch: Sketch) -> None:
    value = _floating(sketch, 1)
    form = sketch.choose("{0}.mean()", "{0}.sum()", "{0}.max()", "{0}.norm()", "{0}.abs().mean()", "{0}.mean((0, -1))")
    sketch.let(form.format(value))


def scan(sketch: Sketch) -> None:
    value = _floating(sketch, 1)
    form = sketch.choose(
        "{0}.cumsum({1})", "torch.cumprod({0} * 0.5, {1})", "torch.cummax({0}, {1})[0]", "{0}.diff(dim={1})"
    )
    sketch.let(form.format(value, sketch.axis(value)))


def normalised(sketch: Sketch) -> None:
    """Divide a value by a reduction of itself."""
    value = _floating(sketch, 1)
    axis = sketch.axis(value)
    form = sketch.choose(
        "{0} - {0}.mean({1}, keepdim=True)",
        "F.normalize({0}, dim={1})",
        "{0} / ({0}.abs().sum({1}, keepdim=True) + 1)",
        "{0} / ({0}.abs().amax({1}, keepdim=True) + 0.5)",
    )
    sketch.let(form.format(value, axis))


def comparison(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating or v.integral)
    forms = ["{0} > 0.1", "{0} <= 0.3", "{0}.abs() < 0.5", "torch.logical_not({0} > 0.2)", "({0} > -0.1) & ({0} < 0.7)"]
    if value.integral:
        forms += ["{0} == 3", "{0} != 0", "{0} % 2 == 0"]
    sketch.let(sketch.choose(*forms).format(value))


def of_booleans(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.boolean and v.rank > 0)
    forms = (
        "~{0}",
        "{0}.any(-1)",
        "{0}.all(0)",
        "{0}.sum(-1)",
        "{0}.to({2})",
        "{0}.float().mean({1})",
        "{0}.cumsum({1})",
    )
    sketch.let(sketch.choose(*forms).format(value, sketch.axis(value), sketch.dtype))


def of_integers(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.integral)
    forms = ("{0} + 1", "{0} // 2", "{0} % 3", "{0} * {0}", "{0}.to({1}) * 0.1", "-{0}", "{0}.clamp(max=4)", "{0} & 3")
    sketch.let(sketch.choose(*forms).format(value, sketch.dtype))


def masked(sketch: Sketch) -> None:
    value = _floating(sketch)
    mask = sketch.pick(lambda v: v.boolean)
    other = _floating(sketch)
    forms = (
        *("{0}.masked_fill({1}, 0.0)", "torch.where({1}, {0}, {2})", "torch.where({1}, {0}, 0.5)", "{0} * {1}"),
        *("{0}.masked_fill(~{1}, -5.0)", "torch.where({1}, {0}, torch.zeros_like({0}))"),
    )
    sketch.let(sketch.choose(*forms).format(value, mask, other))


def selected(sketch: Sketch) -> None:
    """Select values with a mask, and reduce them to one number."""
    value = _floating(sketch, 1)
    form = sketch.choose(
        "{0}[{0} > 0.1].sum()", "torch.masked_select({0}, {0} < 0.5).sum()", "({0} > 0.2).nonzero().shape[0]"
    )
    expression = form.format(value)
    if expression.endswith("shape[0]"):
        sketch.add([f"{sketch.new('n')} = {expression}"])
    else:
        sketch.let(expression)


def triangle(sketch: Sketch) -> None:
    value = _floating(sketch, 2)
    sketch.let(
        sketch.choose("torch.tril({0})", "torch.triu({0}, 1)", "torch.diagonal({0}, dim1=-2, dim2=-1)").format(value)
    )


def order(sketch: Sketch) -> None:
    """Operators that depend on order, for values whose order is certain."""
    value = _floating(sketch, 1)
    axis = sketch.axis(value)
    if not value.distinct(axis):
        raise DoesNotRun
    name, places = sketch.new(), sketch.new()
    form = sketch.choose(
        *("{2} = {0}.argmax({1})", "{2} = {0}.argmin({1}, keepdim=True)", "{2}, {3} = {0}.max({1})"),
        *("{2}, {3} = torch.topk({0}, 1, {1})", "{2}, {3} = {0}.sort({1}, descending=True)", "{2} = {0}.argsort({1})"),
        *("{2} = torch.topk({0}, 2, {1}).values", "{2} = {0}.median({1})[0]", "{2}, {3} = torch.kthvalue({0}, 1, {1})"),
    )
    sketch.add([form.format(value, axis, name, places)])


def product(sketch: Sketch) -> None:
    one, other = _floating(sketch, 1), _floating(sketch, 1)
    form = sketch.choose("{0} @ {1}", "{0} @ {1}.transpose(-1, -2)", "torch.matmul({0}.transpose(-1, -2), {1})")
    sketch.let(form.format(one, other))


def einsum(sketch: Sketch) -> None:
    one = sketch.pick(lambda v: v.floating and v.rank in (2, 3))
    if one.rank == 3:
        other = sketch.pick(lambda v: v.floating and v.rank == 3)
        form = sketch.choose("bij,bkj->bik", "bij,bij->b", "bij,bij->ij", "bij,bkj->kj")
    else:
        other = sketch.pick(lambda v: v.floating and v.rank in (1, 2))
        form = sketch.choose("ij,kj->ik", "ij,ij->i") if other.rank == 2 else sketch.choose("ij,j->i", "ij,k->ijk")
    sketch.let(f'torch.einsum("{form}", {one}, {other})')


def cast(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.tensor)
    forms = ("{0}.float()", "{0}.double()", "{0}.to(torch.int64)", "{0}.bool()", "{0}.to({1})", "{0}.type_as({2})")
    sketch.let(sketch.choose(*forms).format(value, sketch.dtype, _floating(sketch)))


ARITHMETIC = (
    *(binary, unary, reduction, normalised, comparison, masked, product, einsum, order, whole_reduction, cast),
    *(of_integers, of_booleans, scan, triangle, unary_with_steps, selected),
)
