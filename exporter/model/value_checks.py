"""A model's checks of values, which a graph cannot express: an assert, or an `if` that only raises or warns.

While torch.export captures a model, they pass, as they do for the example in a trace. Where eager would raise, an
artifact computes what the formula yields.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from exporter.core import checks_in_code, source_lines

Truth = Callable[..., bool]


def note(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return a warning that names the checks on these lines, if there are any."""
    if not lines:
        return ()
    return (f"exported programs leave out checks of values ({', '.join(lines)}), where eager may raise or warn",)


@contextlib.contextmanager
def passed() -> Iterator[dict[str, None]]:
    """Let each check of values pass within this context; yield the lines of those that did.

    A check whose exception the model may catch is not answered, because it chooses what the model computes.
    """
    lines: dict[str, None] = {}

    def answer() -> bool | None:
        frame = sys._getframe(2)
        file, line = frame.f_code.co_filename, frame.f_lineno
        frames = source_lines.frames_of_model(frame)
        check = checks_in_code.asked(frames) if frames and frames[0] is frame else None
        if check is None or check.passing is None:
            return None
        lines[source_lines.shown(file, line)] = None
        return check.passing

    def of_tensor(usual: Truth) -> Truth:
        @functools.wraps(usual)
        def call(tensor: torch.Tensor) -> bool:
            unknown = isinstance(tensor, FakeTensor) and tensor.constant is None
            found = answer() if unknown else None
            return usual(tensor) if found is None else found

        return call

    def of_condition(usual: Truth) -> Truth:
        def call(condition: torch.SymBool) -> bool:
            try:
                return usual(condition)
            except GuardOnDataDependentSymNode:
                found = answer()
                if found is None:
                    raise
                return found

        return call

    with (
        mock.patch.object(torch.Tensor, "__bool__", of_tensor(torch.Tensor.__bool__)),
        mock.patch.object(torch.SymBool, "__bool__", of_condition(torch.SymBool.__bool__)),
    ):
        yield lines
