"""The child's side of a session in Python: load an artifact and answer requests.

This file is long because it answers every request of a session, and judges what the artifact returns.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote

import numpy as np
import torch

from exporter import targets
from exporter.core import contract, contract_files, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, ContractError, ExporterError, UsageError
from exporter.core.json_codec import to_json
from exporter.evidence import golden as goldens
from exporter.evidence import nonfinite, parity
from exporter.model import custom_ops, steps
from exporter.model.flattening import dtype_name, plain, specs
from exporter.model.precision import use_tf32
from exporter.model.tensors import Run, Tensors
from exporter.workers.children import stand_back

PROTOCOL = 1
NOT_FEW = np.zeros(0)  # in place of values whose size does not count
KINDS = {ArtifactError: "artifact", ContractError: "contract", UsageError: "usage"}


def serve_artifact(
    channel: socket.socket,
    target: str,
    path: str,
    golden_path: str,
    recorded: Contract,
    options: targets.Options,
) -> None:
    """Serve an artifact without importing a recipe or model code.

    The contract inside the artifact must be `recorded`, the manifest's, except for the machine and the versions of one
    that is built to be profiled.
    """
    configure(options)

    def load() -> targets.Loaded:
        custom_ops.require(recorded.ops)
        route = targets.get(target)
        if not options.profiled:
            contract_files.require_recorded(route.read_contract(Path(path)), recorded, Path(path))
        return route.load(Path(path), options)

    serve(channel, load, golden_path, tuple(spec.name for spec in recorded.outputs), options, recorded)


def configure(options: targets.Options) -> None:
    """Configure this process for computing: directories, limits, threads, TF32, device and the user's operators."""
    if options.cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = options.cache
        os.environ.pop("TRITON_CACHE_DIR", None)  # Triton's cache is then inside inductor's
    if options.scratch:
        # Compilers keep their caches in the usual directories; all other temporary files are removed after the run.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")
        os.environ["TMPDIR"] = tempfile.tempdir = options.scratch
    stand_back(options.niceness)
    if options.memory_limit:
        resource.setrlimit(resource.RLIMIT_DATA, (options.memory_limit, options.memory_limit))
    torch.set_num_threads(options.threads)
    if options.device != "cpu":
        torch.cuda.set_device(options.device if ":" in options.device else 0)
    use_tf32(options.precision == "tf32")
    for file in options.ops_libs:
        custom_ops.load(file)


def serve(
    channel: socket.socket,
    load: Callable[[], targets.Loaded],
    golden_path: str,
    outputs: tuple[str, ...],
    options: targets.Options,
    promised: Contract | None = None,
) -> None:
    """Load, send `ready`, and answer requests until `quit` or the end of input.

    Inputs that the contract `promised` refuses are not run.
    """
    with channel.makefile("r", encoding="utf-8") as requests, channel.makefile("w", encoding="utf-8") as answers:
        try:
            started = time.perf_counter()
            loaded = load()
            _synchronize(options.device)
            load_s = time.perf_counter() - started
            judge = Judge(goldens.read(Path(golden_path)).of(options.judged_as or options.precision), outputs, promised)
        except ExporterError as error:
            _say(answers, _error(error))
            raise
        _say(
            answers,
            {
                "event": "ready",
                "protocol": PROTOCOL,
                "language": "python",
                "device": options.device,
                "load_s": load_s,
                "provider": loaded.provider(),
            },
        )
        for line in requests:
            if line.strip() == "quit":
                break
            try:
                _say(answers, _answer(line.split(), loaded, judge, options.device))
            except Exception as error:  # an artifact may fail in any way; the session continues
                _say(answers, _error(error))


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _error(error: Exception) -> dict[str, Any]:
    kind = next((name for cls, name in KINDS.items() if isinstance(error, cls)), "runtime")
    remedy = error.remedy if isinstance(error, ExporterError) else ""
    return {"event": "error", "kind": kind, "message": _message(error), "remedy": remedy}


def _message(error: Exception) -> str:
    """Return the error in one line, with the model's line if TorchScript or eager reports it."""
    return source_lines.located(source_lines.message(error) or type(error).__name__, error)


def _answer(words: list[str], loaded: targets.Loaded, judge: Judge, device: str) -> dict[str, Any]:
    match words:
        case ["check"]:
            return {
                "event": "check",
                "cases": judge.check_all(loaded, device),
                "provider": loaded.provider(),
                "peak_rss_mb": peak_rss_mb(),
                "notes": loaded.notes(),
                "unpropagated": judge.lost(loaded, device),
            }
        case ["time", runs, *name] if runs.isdigit():
            case = _find(judge.golden.cases, " ".join(name))
            judge.enforce(case)
            return {
                "event": "time",
                "samples_ms": _time(loaded, case.inputs, int(runs), device),
                "provider": loaded.provider(),
                "peak_rss_mb": peak_rss_mb(),
            }
        case ["profile", runs] if runs.isdigit():
            case = judge.golden.cases[0]
            judge.enforce(case)
            loaded.reset()
            placed, profile = _place(case.inputs, device), loaded.profile
            ran = profile(placed, int(runs)) if profile else steps.record(loaded.run, placed, device, int(runs))
            return {"event": "profile", "steps": json.loads(to_json(ran))}
        case ["outputs", file]:
            found = goldens.samples(judge.golden)
            for case in found:
                judge.enforce(case)
            sequence = _Sequence(loaded)
            given = [sequence.at(case)(_place(case.inputs, device)) for case in found]
            torch.save([[t.detach().cpu().contiguous() for t in outputs] for outputs in given], unquote(file))
            return {"event": "outputs", "provider": loaded.provider(), "peak_rss_mb": peak_rss_mb()}
    return {"event": "error", "kind": "usage", "message": f"unknown request: {' '.join(words)}"}


def _find(cases: Sequence[goldens.Case], name: str) -> goldens.Case:
    """Return the first case with this name, or the example if the name is empty. Raises UsageError if none exists."""
    for case in cases:
        if name in ("", case.name):
            return case
    raise UsageError(f"the golden has no case {name!r}")


def limits(golden: goldens.Golden) -> list[parity.Limits]:
    """Return the tolerance of each output of a golden: that of its dtype."""
    longest: Tensors = max((case.eager for case in golden.cases), key=len, default=())
    own = [golden.tolerances.get(dtype_name(e.dtype), golden.tolerance) for e in longest]
    references = [case.reference for case in golden.cases]
    few = [[_array(r) if r.numel() <= parity.FEW else NOT_FEW for r in one] for one in references]
    return parity.limits(own, few)


@dataclass(frozen=True)
class Judge:
    """A golden with the names of its outputs, and the contract to enforce on its inputs, if any."""

    golden: goldens.Golden
    outputs: tuple[str, ...]
    promised: Contract | None = None

    @functools.cached_property
    def limits(self) -> list[parity.Limits]:
        """Return the tolerance of each output."""
        return limits(self.golden)

    def enforce(self, case: goldens.Case) -> None:
        """Raise ContractError if the contract refuses the case's inputs."""
        if self.promised is not None:
            known = self.promised.inputs[: len(case.inputs)]  # a later step's state comes from the artifact
            names = tuple(spec.name for spec in known)
            contract.enforce(replace(self.promised, inputs=known, state=None), specs(names, case.inputs))

    def check_all(self, loaded: targets.Loaded, device: str) -> list[dict[str, Any]]:
        """Return the cases of the `check` answer. Each step continues from the artifact's previous state."""
        sequence = _Sequence(loaded)
        return [self.check(sequence.at(case), case, device) for case in self.golden.cases]

    def lost(self, loaded: targets.Loaded, device: str) -> list[str] | None:
        """Describe the NaN and infinity that the artifact loses. Returns None if the golden does not test that."""
        if self.golden.nonfinite is None:
            return None

        def run(inputs: Tensors) -> Tensors:
            loaded.reset()
            return loaded.run(_place(inputs, device))

        example = self.golden.cases[0]
        try:
            found = [nonfinite.lost(one, example, run, self.outputs) for one in self.golden.nonfinite]
        finally:
            loaded.reset()
        return list(filter(None, found))

    def check(self, run: Run, case: goldens.Case, device: str) -> dict[str, Any]:
        """Return one case of the `check` answer. A case that the contract refuses has its message in `refused`."""
        answer: dict[str, Any] = {"case": case.name, "seed": case.record.seed, "error": "", "outputs": []}
        try:
            self.enforce(case)
        except ContractError as error:
            return answer | {"refused": str(error)}
        try:
            outputs = run(_place(case.inputs, device))
            answer["outputs"] = [json.loads(to_json(o)) for o in self.compare(outputs, case)]
        except Exception as error:  # any error of the artifact is a finding
            answer["error"] = _message(error)
        return answer

    def compare(self, outputs: Tensors, case: goldens.Case) -> list[parity.OutputParity]:
        """Compare an artifact's outputs with a golden case. Raises ArtifactError if their number differs."""
        if len(outputs) != len(case.eager):
            raise ArtifactError(f"{len(outputs)} outputs, expected {len(case.eager)}")
        found: list[parity.OutputParity] = []
        for name, y, e, r in zip(self.outputs, outputs, case.eager, case.reference, strict=True):
            dtypes, tolerance = (dtype_name(y.dtype), dtype_name(e.dtype)), self.limits[len(found)]
            one = parity.compare(name, _array(y), _array(e), _array(r), tolerance, dtypes)
            if case.stored:
                arrays = _array(y), _array(e), _array(r), _array(case.stored[len(found)])
                one = parity.compare_stored(one, arrays, tolerance, dtypes)
            found.append(one)
        return found


class _Sequence:
    """Consecutive calls of an artifact. State that the artifact returns is passed on to the next call."""

    def __init__(self, loaded: targets.Loaded) -> None:
        self._loaded = loaded
        self._taken = 0  # number of inputs of a first step, including the state
        self._outputs: Tensors | None = None

    def at(self, case: goldens.Case) -> Run:
        """Return the function that runs this case. Later steps of a sequence get the state of the step before."""
        before, self._outputs = self._outputs, None
        if case.step == 0:
            self._loaded.reset()
            self._taken = len(case.inputs)
        states = self._taken - len(case.inputs) if case.step else 0

        def run(inputs: Tensors) -> Tensors:
            if case.step and before is None:
                raise ArtifactError("the previous step failed")
            state = before[len(before) - states :] if before is not None and states else ()
            self._outputs = self._loaded.run((*inputs, *state))
            return self._outputs

        return run


def _array(tensor: torch.Tensor) -> parity.Array:
    tensor = plain(tensor.detach().cpu())
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.numpy()


def _place(inputs: Tensors, device: str) -> Tensors:
    """Copy the inputs to the device, so that an artifact that changes them in place does not change the golden."""
    return tuple(t.to(device, copy=True) for t in inputs)


def _time(loaded: targets.Loaded, inputs: Tensors, runs: int, device: str) -> list[float]:
    """Return the milliseconds of each call from the initial state. The device is synchronised before each reading."""
    run, placed = loaded.run, _place(inputs, device)
    _synchronize(device)
    samples = []
    for _ in range(runs):
        loaded.reset()
        started = time.perf_counter()
        run(placed)
        _synchronize(device)
        samples.append((time.perf_counter() - started) * 1000)
    return samples


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
