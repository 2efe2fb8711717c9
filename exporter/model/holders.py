"""Replacing a function wherever modules hold it by name, as after `from torch.nn.functional import pad`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

Names = dict[str, Any]  # the global names of a module
Replacement = Callable[[Any], Any]  # returns what a value is replaced by; None if it is kept


@contextlib.contextmanager
def replaced(replacement: Replacement) -> Iterator[None]:
    """Replace global names of all loaded modules within this context.

    Modules that are loaded within it, and take a name from another, get the original afterwards too.
    """
    originals: dict[int, tuple[Any, Any]] = {}  # by the identity of what replaces them
    with contextlib.ExitStack() as stack:
        stack.callback(_restore, originals)
        for names in _modules():
            made = {name: other for name, one in list(names.items()) if (other := replacement(one)) is not None}
            originals |= {id(other): (other, names[name]) for name, other in made.items()}
            stack.enter_context(named(names, made))
        yield


def _modules() -> Iterator[Names]:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):  # a class or another object may stand in place of a module
            yield names


def _restore(originals: dict[int, tuple[Any, Any]]) -> None:
    for names in _modules():
        for name, one in list(names.items()):
            if id(one) in originals:
                names[name] = originals[id(one)][1]


@contextlib.contextmanager
def named(names: Names, others: Names) -> Iterator[None]:
    """Give a module these names within this context. It keeps whatever else changes in the meantime."""
    before = {name: names[name] for name in others if name in names}
    names.update(others)
    try:
        yield
    finally:
        for name in others:
            if name in before:
                names[name] = before[name]
            else:
                names.pop(name, None)


def of(usual: object, other: object) -> Replacement:
    """Return the replacement of one object by another."""
    return lambda value: other if value is usual else None
