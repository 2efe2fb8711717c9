"""A signed bundle, and the keys that it is signed with."""

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
    """A bundle with a signature, which a test may spoil."""
    integrity.sign(bundle, keys[0], lambda: "")
    return bundle
