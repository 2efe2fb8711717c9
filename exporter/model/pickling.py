"""Saving a module in memory for other processes: classes and functions by value, TorchScript by torch.jit.save."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import torch


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.jit.ScriptModule):
            file = io.BytesIO()
            torch.jit.save(value, file)
            return _program, (file.getvalue(),)
        return super().reducer_override(value)


def _program(saved: bytes) -> torch.jit.ScriptModule:
    program: torch.jit.ScriptModule = torch.jit.load(io.BytesIO(saved))
    return program


def save(value: Any, path: Path) -> None:
    """Write a file for `torch.load`. Raises whatever pickling raises."""
    torch.save(value, path, pickle_module=SimpleNamespace(__name__=__name__, Pickler=_Pickler))
