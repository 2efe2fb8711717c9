"""Statements with branches and loops, that change tensors in place, and that keep state."""

from __future__ import annotations

from fuzz.sketch import DoesNotRun, Sketch, Value


def _own(sketch: Sketch, rank: int = 1) -> tuple[Value, str]:
    """Copy a value so that it may be changed; return the value and the name of the copy."""
    return sketch.pick(lambda v: v.floating and v.rank >= rank), sketch.new()


def branch_on_a_size(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 0)
    name, size = sketch.new(), f"{value}.shape[{sketch.axis(value)}]"
    test = sketch.choose("{} > 2", "{} == 1", "{} % 2 == 0", "{} <= 3", "{} >= 5").format(size)
    one, other = sketch.choose(("{} * 2", "{} - 1"), ("{}", "{}.abs()"), ("{} + 0.5", "{}.tanh()"))
    lines = [f"if {test}:", f"    {name} = {one.format(value)}", "else:", f"    {name} = {other.format(value)}"]
    sketch.add(lines)


def branch_on_values(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating)
    name = sketch.new()
    test = sketch.choose("{}.sum() > 0", "{}.mean() < 0.05", "bool({}.max() > 1)", "{}.abs().amax().item() > 1.5")
    one, other = sketch.choose(("{} * 2", "{} - 1"), ("{}", "{}.abs() + 1"), ("{} + 0.5", "{}.tanh()"))
    lines = [f"if {test.format(value)}:", f"    {name} = {one.format(value)}"]
    sketch.add([*lines, "else:", f"    {name} = {other.format(value)}"])


def branch_on_a_flag(sketch: Sketch) -> None:
    """Branch on a constant among the inputs."""
    value = sketch.pick(lambda v: v.floating)
    flags = [name for name, held in sketch.arguments()[0].items() if isinstance(held, bool)]
    if not flags:
        raise DoesNotRun
    name = sketch.new()
    lines = [f"{name} = {value}", f"if {sketch.choose(*flags)}:", f"    {name} = {name} * 2"]
    sketch.add(lines)


def loop_that_sums(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 1)
    name, axis = sketch.new(), sketch.choose(1, 0)
    part = f"{value}[:, i]" if axis else f"{value}[i]"
    step = sketch.choose("{0} * 0.5 + {1}", "torch.tanh({0} + {1})", "{0} + i * {1}").format(name, part)
    lines = [f"{name} = torch.zeros_like({part.replace('i]', '0]')})", f"for i in range({value}.shape[{axis}]):"]
    sketch.add([*lines, f"    {name} = {step}"])


def loop_that_stacks(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 1)
    rows, name, axis = sketch.new("rows"), sketch.new(), sketch.choose(1, 0)
    part = f"{value}[:, i]" if axis else f"{value}[i]"
    lines = [f"{rows} = []", f"for i in range({value}.shape[{axis}]):", f"    {rows}.append({part} * (i + 1))"]
    sketch.add([*lines, f"{name} = torch.stack({rows}, {axis})"])


def while_on_values(sketch: Sketch) -> None:
    """Halve until small; the number of iterations depends on the values."""
    value, name = _own(sketch)
    sketch.add([f"{name} = {value}", f"while bool({name}.abs().max() > 1.0):", f"    {name} = {name} * 0.5"])


def in_place(sketch: Sketch) -> None:
    value, name = _own(sketch)
    change = sketch.choose(
        *("{0}.add_(1)", "{0}.mul_(0.5)", "{0}.relu_()", "{0}.clamp_(min=0.1)", "{0} += 1", "{0}.tanh_()"),
        "{0} *= {1}",
        *("{0}.masked_fill_({0} > 0.5, 0.0)", "{0}.sub_({1}.mean())", "{0}.copy_({1}.flip(0))", "{0}.zero_()"),
    )
    sketch.add([f"{name} = {value} * 1.5", change.format(name, value)])


def in_place_where_it_is(sketch: Sketch) -> None:
    """Change an intermediate that has views, or is one."""
    value = sketch.pick(lambda v: v.floating and v.rank > 0 and sketch.owned(v))
    sketch.add([sketch.choose("{}.add_(0.5)", "{}.mul_(2.0)", "{}[0] = 0.5", "{}.neg_()").format(value)])


def in_place_through_a_view(sketch: Sketch) -> None:
    value, name = _own(sketch, 2)
    view = sketch.new()
    forms = (
        ["{0}[:, 0] = 0.0"],
        ["{0}[:, 1:] = {0}[:, :-1].clone()"],
        ["{0}[..., 0] += 1.0"],
        ["{0}[{0} > 0.3] = 0.1"],
        ["{1} = {0}[:, :1]", "{1}.add_(1.0)"],
        ["{1} = {0}.transpose(0, 1)", "{1}.mul_(2.0)"],
        ["{1} = {0}.reshape(-1)", "{1}[0] = 0.25"],
        ["{1} = {0}.view(-1)", "{1}.mul_(0.5)", "{0}.add_(1)"],
        ["{0}[0] = {0}[-1]"],
        ["{0}.index_fill_(0, torch.tensor([0]), 0.5)"],
        ["{0}.select(1, 0).fill_(0.5)"],
        ["{1} = {0}.unsqueeze(0)", "{0}.add_(1)"],
    )
    lines = [line.format(name, view) for line in sketch.choose(*forms)]
    sketch.add([f"{name} = {value} + 0.25", *lines])


def scatter(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 0)
    which = sketch.pick(lambda v: v.integral and v.rank == value.rank)
    axis = sketch.axis(value)
    form = sketch.choose(
        "{0}.scatter_add({1}, {2} % {0}.shape[{1}], torch.ones_like({2}).to({0}))",
        "{0}.scatter({1}, {2} % {0}.shape[{1}], 0.5)",
        "torch.zeros_like({0}).index_add(0, {2}.reshape(-1)[: {0}.shape[0]] % {0}.shape[0], {0})",
    )
    sketch.let(form.format(value, axis, which))


def constant_buffer(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.static(-1))
    buffer = sketch.buffer(f"torch.linspace(-1.0, 1.0, {value.size(-1)})")
    sketch.let(f"{value} {sketch.choose('*', '+')} {buffer}")


def buffer_that_is_overwritten(sketch: Sketch) -> None:
    """Write a buffer before reading it, so that no call depends on the previous one."""
    value = sketch.pick(lambda v: v.floating and v.rank > 1 and v.static(-1))
    buffer = sketch.buffer(f"torch.zeros({value.size(-1)})")
    flat = f"{value}.reshape(-1, {value.size(-1)}).mean(0)"
    write = sketch.choose("{0}.copy_({1})", "{0}[:] = {1}", "{0}.zero_().add_({1})").format(buffer, flat)
    sketch.add([write, f"{sketch.new()} = {value} - {buffer}"])


def buffer_that_counts(sketch: Sketch) -> None:
    """Change a buffer in every call without reading it."""
    buffer = sketch.buffer("torch.zeros((), dtype=torch.int64)")
    sketch.add([sketch.choose("{}.add_(1)", "{} += 1").format(buffer)])


def random_that_is_not(sketch: Sketch) -> None:
    """Use dropout and training flags, which do nothing in eval mode."""
    value, name = _own(sketch)
    form = sketch.choose("F.dropout({0}, 0.5, self.training)", "F.dropout({0}, 0.5, training=False)")
    sketch.add([f"{name} = {form.format(value)}"])


def assertion(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.tensor and v.rank > 0)
    sketch.add([f"assert {value}.shape[0] > 0", f"{sketch.new()} = {value}.clone()"])


CONTROL = (
    *(in_place, in_place_through_a_view, in_place_where_it_is, branch_on_a_size, loop_that_sums),
    *(loop_that_stacks, constant_buffer),
    *(branch_on_a_flag, buffer_that_is_overwritten, buffer_that_counts, branch_on_values, scatter, while_on_values),
    *(random_that_is_not, assertion),
)
