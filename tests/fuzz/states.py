"""Statements that keep state from call to call, in buffers and in plain attributes."""

from __future__ import annotations

from fuzz.sketch import Sketch, Value

PREFIX = "kept"  # prefix of the name of every attribute with state


def _value(sketch: Sketch) -> Value:
    return sketch.pick(lambda v: v.floating and v.rank >= 1)


def _floats(sketch: Sketch, shape: str) -> str:
    return f"torch.zeros({shape}, dtype={sketch.dtype})"


def _buffer(sketch: Sketch, expression: str) -> str:
    name = sketch.new(PREFIX)
    return sketch.attribute(name, f'self.register_buffer("{name}", {expression})')


def _attribute(sketch: Sketch, expression: str) -> str:
    name = sketch.new(PREFIX)
    return sketch.attribute(name, f"self.{name} = {expression}")


def average(sketch: Sketch) -> None:
    """Average all calls so far; the state is changed in place or reassigned, and read before or after."""
    value = _value(sketch)
    kept = _buffer(sketch, _floats(sketch, "1"))
    change = sketch.choose(
        "{0}.mul_(0.5).add_({1}.mean())",
        "{0} = 0.5 * {0} + {1}.mean()",
        "{0}.copy_(torch.tanh({0} + {1}.mean()))",
        "{0}[0] = 0.25 * {0}[0] - {1}.mean()",
    ).format(kept, value)
    use = f"{sketch.new()} = {value} + {kept}"
    sketch.add(sketch.choose([change, use], [use, change]))


def count(sketch: Sketch) -> None:
    value = _value(sketch)
    kept = _buffer(sketch, "torch.zeros((), dtype=torch.int64)")
    change = sketch.choose("{0}.add_(1)", "{0} += 1", "{0} = {0} + 1", "{0}.copy_(({0} + 2) % 5)").format(kept)
    sketch.add([change, f"{sketch.new()} = {value} * (1 + {kept} % 3)"])


def ring(sketch: Sketch) -> None:
    value = _value(sketch)
    kept = _buffer(sketch, _floats(sketch, "3"))
    at = _buffer(sketch, "torch.zeros(1, dtype=torch.int64)")
    sketch.add([
        f"{kept}.index_copy_(0, {at}, {value}.mean().reshape(1))",
        f"{at}.copy_(({at} + 1) % 3)",
        f"{sketch.new()} = {value} - {kept}.sum()",
    ])  # fmt: skip


def delayed(sketch: Sketch) -> None:
    """Return the value of the previous call, kept in a list or a tuple."""
    value = _value(sketch)
    kept = _attribute(sketch, f"[{_floats(sketch, '1')}, {_floats(sketch, '1')}]")
    new = sketch.choose("[{1}.mean().reshape(1), {0}[0]]", "[{0}[1] * 0.5, {1}.amax().reshape(1)]").format(kept, value)
    sketch.add([f"{sketch.new()} = {value} + {kept}[0] - 0.5 * {kept}[1]", f"{kept} = {new}"])


def of_batch(sketch: Sketch) -> None:
    """Keep state with the sizes of the first call."""
    value = sketch.pick(lambda v: v.floating and v.rank >= 2 and not v.static(0))
    kept = _attribute(sketch, "None")
    zeros = f"torch.zeros_like({value})"
    sketch.add([
        f"if {kept} is None or {kept}.shape != {value}.shape:",
        f"    {kept} = {zeros}",
        f"{kept} = 0.5 * {kept} + {value}",
        f"{sketch.new()} = {kept} * 1.5",
    ])  # fmt: skip


def unread(sketch: Sketch) -> None:
    """Change state that nothing reads."""
    value = _value(sketch)
    kept = _attribute(sketch, "None")
    sketch.add([f"{kept} = {value}.detach()", f"{sketch.new()} = {value} * 2"])


STATES = (average, count, ring, delayed, of_batch, unread)
