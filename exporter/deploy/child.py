"""Convert a golden for other programs. This runs in a child process, because reading a golden requires torch."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np

from exporter.core.contract_records import Contract
from exporter.evidence import diagnosis, golden
from exporter.evidence.parity import Limits
from exporter.workers.session import server


def warm_up(channel: socket.socket, golden_path: str, folder: str, one_row: bool) -> list[list[int]]:
    """Write each input of the example as raw bytes to a file named by its index, with `one_row` only its first row.

    Returns the shapes, with `one_row` without the first dimension.
    """
    place = Path(folder)
    place.mkdir()
    inputs = golden.read(Path(golden_path)).cases[0].inputs
    for index, tensor in enumerate(inputs):
        part = tensor[:1] if one_row else tensor
        (place / str(index)).write_bytes(part.contiguous().numpy().tobytes())
    return [list(tensor.shape[one_row:]) for tensor in inputs]


def arrays(
    channel: socket.socket, golden_path: str, path: str, promised: Contract
) -> tuple[list[tuple[str, int]], list[Limits]]:
    """Write the golden's cases that a contract allows as a NumPy `.npz`.

    Return their names and seeds, and the limits of each output.

    The keys are CASE.KIND.INDEX, where CASE and INDEX are numbers and KIND is inputs, eager, reference or stored. Of a
    sequence of calls only the first is written, because later calls depend on the artifact's own outputs.
    """
    whole = golden.read(Path(golden_path)).of(promised.precision)
    cases = [case for case in whole.cases if not case.step and not diagnosis.outside(case.record.sizes, promised)]
    named = {
        f"{number}.{kind}.{index}": tensor.numpy()
        for number, case in enumerate(cases)
        for kind in ("inputs", "eager", "reference", "stored")
        for index, tensor in enumerate(getattr(case, kind))
    }
    np.savez_compressed(path, **named)
    return [(case.name, case.record.seed) for case in cases], server.limits(whole)
