"""The names of layers that the user wants in floating point. Nothing here imports torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exporter.core.errors import ExportError

if TYPE_CHECKING:
    import torch


def own_path(path: str) -> str:
    """Return the path of a module in the user's model, which is called `model` in its wrappers; "" for these."""
    found = path.removeprefix("flat.")
    return found.removeprefix("model.") if found.startswith("model.") else ""


def is_kept(path: str, kept: Sequence[str]) -> bool:
    """Return whether a layer stays in floating point: it, or a module around it, is among the names."""
    return any(path == name or path.startswith(f"{name}.") for name in kept)


def require_known(module: torch.nn.Module, kept: Sequence[str]) -> None:
    """Raise ExportError for a name that no module of the model has."""
    known = {own_path(path) for path, _ in module.named_modules(remove_duplicate=False)} - {""}
    for name in kept:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            raise ExportError(
                f"the model has no layer {name} that could be kept in float",
                f"did you mean {', '.join(close)}?" if close else "use a name of model.named_modules()",
            )
