"""A golden as other programs read it, written in a child: whoever reads the file itself needs torch."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np

from exporter.core.contract_records import Contract
from exporter.evidence import diagnosis, golden


def warm_up(channel: socket.socket, golden_path: str, folder: str, one_row: bool) -> list[list[int]]:
    """Write the example's inputs as raw bytes, each to a file of its number, one row of each on wish.

    Returns their shapes, without the dimension of that row.
    """
    place = Path(folder)
    place.mkdir()
    inputs = golden.read(Path(golden_path)).cases[0].inputs
    for index, tensor in enumerate(inputs):
        part = tensor[:1] if one_row else tensor
        (place / str(index)).write_bytes(part.contiguous().numpy().tobytes())
    return [list(tensor.shape[one_row:]) for tensor in inputs]


def arrays(channel: socket.socket, golden_path: str, path: str, promised: Contract) -> list[tuple[str, int]]:
    """Write what a contract allows of its golden as NumPy's `.npz`, CASE.KIND.INDEX by number; returns names, seeds.

    Of a sequence of calls the first: later ones go on from what the artifact gave.
    """
    found = golden.read(Path(golden_path)).of(promised.precision).cases
    cases = [case for case in found if not case.step and not diagnosis.outside(case.record.sizes, promised)]
    named = {
        f"{number}.{kind}.{index}": tensor.numpy()
        for number, case in enumerate(cases)
        for kind in ("inputs", "eager", "reference")
        for index, tensor in enumerate(getattr(case, kind))
    }
    np.savez_compressed(path, **named)
    return [(case.name, case.record.seed) for case in cases]
