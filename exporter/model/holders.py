"""Replacing a function wherever modules hold it by name, as after `from torch.nn.functional import pad`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

Replacement = Callable[[Any], Any]  # returns what a value is replaced by; None if it is kept


@contextlib.contextmanager
def replaced(replacement: Replacement) -> Iterator[None]:
    """Replace global names of all loaded modules within this context."""
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):
            names: dict[str, Any] = getattr(module, "__dict__", {})
            made = {name: other for name, one in list(names.items()) if (other := replacement(one)) is not None}
            if made:
                stack.enter_context(mock.patch.dict(names, made))
        yield


def of(usual: object, other: object) -> Replacement:
    """Return the replacement of one object by another."""
    return lambda value: other if value is usual else None
