"""Export a PyTorch model to several artifacts, check their outputs and find out which one to ship.

`export` makes a bundle of artifacts with the evidence for them, and `open_artifact` loads one of them. Both raise
`ExporterError`, with a cause and a remedy. Importing this package does not import torch.

The import sets ORT_DISABLE_TELEMETRY if it is unset. onnxruntime reads it when it is imported, and no later call stops
its telemetry.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from exporter._version import __version__ as __version__

_MODULES = {
    "Artifact": "exporter.api.artifact",
    "Bundle": "exporter.api.exporting",
    "ContractError": "exporter.core.errors",
    "ExporterError": "exporter.core.errors",
    "Recipe": "exporter.model.recipes",
    "export": "exporter.api.exporting",
    "open_artifact": "exporter.api.artifact",
}
__all__ = ["Artifact", "Bundle", "ContractError", "ExporterError", "Recipe", "export", "open_artifact"]

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from exporter.api.artifact import Artifact, open_artifact
    from exporter.api.exporting import Bundle, export
    from exporter.core.errors import ContractError, ExporterError
    from exporter.model.recipes import Recipe


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
