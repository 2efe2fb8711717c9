"""A golden's first inputs as raw bytes, written in a child: whoever reads a golden needs torch."""

from __future__ import annotations

import socket
from pathlib import Path

from exporter import golden


def write(channel: socket.socket, golden_path: str, folder: str, one_row: bool) -> list[list[int]]:
    """Write each input to a file of its number, its first row alone where asked; returns the shapes without that."""
    place = Path(folder)
    place.mkdir()
    inputs = golden.read(Path(golden_path)).cases[0].inputs
    for index, tensor in enumerate(inputs):
        part = tensor[:1] if one_row else tensor
        (place / str(index)).write_bytes(part.contiguous().numpy().tobytes())
    return [list(tensor.shape[one_row:]) for tensor in inputs]
