"""What a model sets up in its first call: hooks that record hidden states, and the flag that says that they exist.

Such a model returns the same in every call, but only if both are kept or both are undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from exporter.model.state import snapshot
from exporter.model.state.snapshot import Snapshot


def set_up(module: torch.nn.Module, held: Snapshot, call: Callable[[], object]) -> Snapshot:
    """Call the model, undo everything but hooks and flags that the call left, and return a snapshot of that."""
    held.restore()
    call()
    flags = {path: value for path, value in held.changes().items() if type(value) is bool}
    hooks = snapshot.hooks(module)
    held.restore()
    for current, content in hooks:
        current.clear()
        current.update(content)
    for path, flag in flags.items():
        with contextlib.suppress(*snapshot.MISSING):  # a flag of an object that the call made
            snapshot.put(module, path, flag)
    return Snapshot(module)
