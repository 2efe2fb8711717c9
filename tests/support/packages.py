"""Packages that tests compile in their own process."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from exporter.core import environment
from exporter.targets import _objects


def require_vectors(bits: int) -> None:
    """Skip the test if the CPU lacks vectors of this width."""
    if bits == 512 and "avx512f" not in environment.cpu_flags():
        pytest.skip("this CPU lacks AVX-512")


def build(program: Any, path: Path, **settings: object) -> Path:
    """Compile an exported program with inductor's settings; take objects from the cache and keep them there."""
    _objects.keep_headers()
    with torch.no_grad(), _objects.reused():
        return Path(
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
        )


def sources(path: Path) -> str:
    """Return the C++ sources in a package."""
    with zipfile.ZipFile(path) as archive:
        return "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp"))
