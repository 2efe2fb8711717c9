"""A target to tune: how fast and how right its artifacts are depends on the option `opset`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.core import contract_files
from exporter.core.errors import ExportError
from exporter.core.json_codec import to_json
from exporter.core.tuning_records import Choice
from exporter.targets import Candidate, Exported, Loaded, Options

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

SLOW, FAST = 0.006, 0.001  # seconds of a call
USUAL, FASTER, WRONG, SLOWER, RAISES, CRASHES, DIES_LATER, SLOWER_AT_8, FASTEST = 0, 18, 19, 20, 21, 22, 23, 24, 25
SOMEWHAT = 26
artifact = "tuned.pt"
variants = ("",)
precisions = ("fp32",)
requires = ()
native = False
needs_program = True
read_contract = contract_files.read_zip


def candidates(options: Options) -> list[Candidate]:
    """Return what is tried unless a test replaces this function."""
    return [Candidate(Choice("opset", (str(FASTER),)))]


def export(program: Program, path: Path, options: Options) -> Exported:
    """Save a trace of the module with its contract and the option."""
    import torch

    how = options.opset or USUAL
    if how == RAISES:
        raise ExportError("it cannot be built")
    if how == CRASHES:
        os.kill(os.getpid(), signal.SIGSEGV)
    with torch.no_grad():
        traced = torch.jit.trace(program.module, program.example)
    torch.jit.save(traced, path, _extra_files={"contract.json": to_json(program.contract), "how": str(how)})
    return Exported(notes=(f"built as {how}",))


def load(path: Path, options: Options) -> Loaded:
    """Load the trace; a call sleeps, returns something else or ends the process, as the option says."""
    import torch

    extra = {"how": ""}
    module = torch.jit.load(path, _extra_files=extra)
    how = options.opset or int(extra["how"])
    calls = 0

    def run(inputs: Tensors) -> Tensors:
        nonlocal calls
        calls += 1
        if how == DIES_LATER and calls > 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == SLOWER_AT_8 and inputs[0].shape[0] == 8:
            time.sleep(2 * SLOW)
        time.sleep({USUAL: SLOW, SLOWER: 1.1 * SLOW, SOMEWHAT: 0.6 * SLOW, FASTEST: FAST / 20}.get(how, FAST))
        with torch.no_grad():
            outputs: Tensors = module(*inputs)
        return tuple(one + 1 for one in outputs) if how == WRONG else outputs

    return Loaded(run)
