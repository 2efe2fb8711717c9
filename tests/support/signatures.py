"""Signing keys, and files with a flipped bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def write_keys(folder: Path, private: Any, password: bytes = b"") -> tuple[Path, Path]:
    """Write a private and a public key to PEM files."""
    lock = BestAvailableEncryption(password) if password else NoEncryption()
    key, public = folder / "key.pem", folder / "pub.pem"
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key, public


def flip(path: Path, share: float = 0.5) -> None:
    """Flip one bit; an empty file gets one byte."""
    data = bytearray(path.read_bytes() or b"\0")
    data[int((len(data) - 1) * share)] ^= 1
    path.write_bytes(data)
