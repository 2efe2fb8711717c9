"""Compare a patched model, and the program exported from it, with the recorded calls of the original."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from exporter.core import contract, probing, source_lines, tolerances
from exporter.core.contract_records import Contract
from exporter.model.flattening import dtype_name
from exporter.model.tensors import Tensors
from exporter.workers.messages import Job
from exporter.workers.repair import overlay
from exporter.workers.repair.child import captured, loaded_with_contract
from exporter.workers.repair.recording import Case, run
from exporter.workers.repair.records import Compared

Call = Callable[[Tensors], tuple[Tensors, Tensors]]


def compare(channel: socket.socket, job: Job, texts: Mapping[str, bytes], expected: Contract, file: Path) -> Compared:
    """Run the patched model and its exported program on the recorded inputs. `expected` is the original's contract."""
    overlay.install(texts)
    loaded, found = loaded_with_contract(job)
    if _promised(found) != _promised(expected):
        return Compared("the contract differs from the original's")
    program = captured(job, loaded, found).program.module()
    device = job.options.device
    sides: dict[str, Call] = {
        "the patched model": lambda data: run(loaded.module, data, device),
        "the exported program": lambda data: run(program, data, device),
    }
    cases = [Case(**fields) for fields in torch.load(file)]
    max_abs, unchecked = 0.0, 0
    for case in cases:
        for who, call in sides.items():
            problem, difference = _difference(case, call)
            if problem:
                return Compared(f"{who} differs from the original at {probing.describe(case.sizes)}: {problem}")
            max_abs = max(max_abs, difference)
        unchecked += bool(case.raised) and not _raises(case, sides["the exported program"])
    if strange := [path for path in loaded.strange() if path]:
        return Compared(f"the patched model keeps something that the original does not: {strange[0]}")
    written = [case for case in cases if case.written and not case.raised]
    after = [sides["the patched model"](case.inputs)[1] for case in written]
    for case, tensors in zip(written, after, strict=True):
        if any(_of_tensors(*pair)[0] for pair in zip(tensors, case.written, strict=False)):
            return Compared(f"the patched model writes other values to its inputs at {probing.describe(case.sizes)}")
    return Compared("", max_abs, unchecked, bool(written) and not any(after))


def _promised(found: Contract) -> Contract:
    """Return what a contract promises: names, dtypes, shapes and ranges."""
    return replace(contract.as_function(found), state=None)


def _raises(case: Case, call: Call) -> bool:
    try:
        call(case.inputs)
    except Exception:  # whatever the original raises
        return True
    return False


def _difference(case: Case, call: Call) -> tuple[str, float]:
    """Return how the outputs differ, "" if they agree, and the largest difference. Calls that raised count as equal."""
    if case.raised:
        return "", 0.0
    try:
        outputs, _ = call(case.inputs)
    except Exception as error:  # a patch may fail in any way
        return source_lines.summary(error), 0.0
    if len(outputs) != len(case.outputs):
        return f"{len(outputs)} outputs instead of {len(case.outputs)}", 0.0
    largest = 0.0
    for got, wanted in zip(outputs, case.outputs, strict=True):
        problem, distance = _of_tensors(got, wanted)
        if problem:
            return problem, 0.0
        largest = max(largest, distance)
    return "", largest


def _of_tensors(got: torch.Tensor, wanted: torch.Tensor) -> tuple[str, float]:
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)}, expected {list(wanted.shape)}", 0.0
    if got.dtype != wanted.dtype:
        return f"dtype {dtype_name(got.dtype)}, expected {dtype_name(wanted.dtype)}", 0.0
    if not (got.is_floating_point() or got.is_complex()):
        return ("", 0.0) if torch.equal(got, wanted) else ("other values", 0.0)
    tolerance = tolerances.of_dtype(dtype_name(wanted.dtype))
    largest = _largest(wanted, torch.zeros_like(wanted))
    atol = min(tolerance.atol, tolerance.rtol * largest)  # so that small values are compared too
    if not torch.allclose(got, wanted, rtol=tolerance.rtol, atol=atol, equal_nan=True):
        return f"other values, {_largest(got, wanted):.3g} apart", 0.0
    return "", _largest(got, wanted)


def _largest(got: torch.Tensor, wanted: torch.Tensor) -> float:
    distance = (got - wanted).abs().nan_to_num(0.0, 0.0, 0.0)
    return float(distance.max()) if distance.numel() else 0.0
