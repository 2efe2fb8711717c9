"""Fixtures: a signed bundle and the keys that signed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from support.signatures import write_keys

from exporter.bundle import integrity


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a private and a public key."""
    return write_keys(tmp_path_factory.mktemp("keys"), ed25519.Ed25519PrivateKey.generate())


@pytest.fixture
def signed(bundle: Path, keys: tuple[Path, Path]) -> Path:
    """A signed bundle that a test may alter."""
    integrity.sign(bundle, keys[0], lambda: "")
    return bundle
