"""The Python side of a session: what runs in the child."""

from __future__ import annotations

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

import torch

from exporter import targets
from exporter.core import contract, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, ContractError, ExporterError, UsageError
from exporter.core.json_codec import to_json
from exporter.evidence import golden as goldens
from exporter.evidence import nonfinite, parity
from exporter.model import custom_ops
from exporter.model.flattening import dtype_name, plain, specs
from exporter.model.precision import use_tf32
from exporter.model.tensors import Run, Tensors
from exporter.workers.children import stand_back

PROTOCOL = 1
KINDS = {ArtifactError: "artifact", ContractError: "contract", UsageError: "usage"}


def serve_artifact(
    channel: socket.socket,
    target: str,
    path: str,
    golden_path: str,
    promised: Contract,
    options: targets.Options,
) -> None:
    """A session of an artifact: no recipe and no model code is imported. `promised` is the contract that it carries."""
    configure(options)

    def load() -> targets.Loaded:
        custom_ops.require(promised.ops)
        return targets.get(target).load(Path(path), options)

    serve(channel, load, golden_path, tuple(spec.name for spec in promised.outputs), options, promised)


def configure(options: targets.Options) -> None:
    """The same in every process that computes: limits, threads, float32 that is float32, the user's operators."""
    if options.cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = options.cache
        os.environ.pop("TRITON_CACHE_DIR", None)  # it then lies in inductor's
    if options.scratch:
        # Compilers keep their caches where they always are; all else that is temporary goes away with the run.
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
    """Load, say so, and answer requests until `quit` or the end of input. What `promised` refuses is not run."""
    with channel.makefile("r", encoding="utf-8") as requests, channel.makefile("w", encoding="utf-8") as answers:
        try:
            started = time.perf_counter()
            loaded = load()
            _synchronize(options.device)
            load_s = time.perf_counter() - started
            judge = Judge(goldens.read(Path(golden_path)).of(options.precision), outputs, promised)
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
            except Exception as error:  # the session goes on; the artifact may fail in any way
                _say(answers, _error(error))


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _error(error: Exception) -> dict[str, Any]:
    kind = next((name for cls, name in KINDS.items() if isinstance(error, cls)), "runtime")
    remedy = error.remedy if isinstance(error, ExporterError) else ""
    return {"event": "error", "kind": kind, "message": _message(error), "remedy": remedy}


def _message(error: Exception) -> str:
    """In one line, with the line of the model that TorchScript and eager still know of."""
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
        case ["outputs", file]:
            found = goldens.samples(judge.golden)
            for case in found:
                judge.enforce(case)
            sequence = _Sequence(loaded)
            given = [sequence.at(case)(_place(case.inputs, device)) for case in found]
            torch.save([[t.detach().cpu().contiguous() for t in outputs] for outputs in given], unquote(file))
            return {"event": "outputs", "provider": loaded.provider(), "peak_rss_mb": peak_rss_mb()}
    return {"event": "error", "kind": "usage", "message": f"not a request: {' '.join(words)}"}


def _find(cases: Sequence[goldens.Case], name: str) -> goldens.Case:
    """The first case of this name, the example where there is no name. UsageError when there is none."""
    for case in cases:
        if name in ("", case.name):
            return case
    raise UsageError(f"the golden has no case {name!r}")


@dataclass(frozen=True)
class Judge:
    """A golden, and the names of the outputs that it holds."""

    golden: goldens.Golden
    outputs: tuple[str, ...]
    promised: Contract | None = None

    def enforce(self, case: goldens.Case) -> None:
        """ContractError where the contract refuses the case's inputs."""
        if self.promised is not None:
            known = self.promised.inputs[: len(case.inputs)]  # the state of a later step is the artifact's own
            names = tuple(spec.name for spec in known)
            contract.enforce(replace(self.promised, inputs=known, state=None), specs(names, case.inputs))

    def check_all(self, loaded: targets.Loaded, device: str) -> list[dict[str, Any]]:
        """The cases of the `check` answer. A step goes on from what the artifact gave at the one before."""
        sequence = _Sequence(loaded)
        return [self.check(sequence.at(case), case, device) for case in self.golden.cases]

    def lost(self, loaded: targets.Loaded, device: str) -> list[str] | None:
        """What of NaN and infinity the artifact does not propagate, in words; None where the golden does not ask."""
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
        """One case of the `check` answer; of what the contract refuses, what it says."""
        answer: dict[str, Any] = {"case": case.name, "seed": case.record.seed, "error": "", "outputs": []}
        try:
            self.enforce(case)
        except ContractError as error:
            return answer | {"refused": str(error)}
        try:
            outputs = run(_place(case.inputs, device))
            answer["outputs"] = [json.loads(to_json(o)) for o in self.compare(outputs, case)]
        except Exception as error:  # whatever the artifact raises is the finding
            answer["error"] = _message(error)
        return answer

    def compare(self, outputs: Tensors, case: goldens.Case) -> list[parity.OutputParity]:
        """Outputs of an artifact against a golden case. ArtifactError when their number differs."""
        if len(outputs) != len(case.eager):
            raise ArtifactError(f"{len(outputs)} outputs, expected {len(case.eager)}")
        triples = zip(self.outputs, outputs, case.eager, case.reference, strict=True)
        return [
            parity.compare(
                name, _array(y), _array(e), _array(r), self.golden.tolerance, (dtype_name(y.dtype), dtype_name(e.dtype))
            )
            for name, y, e, r in triples
        ]


class _Sequence:
    """Calls of an artifact one after the other, the state that it leaves to its caller handed on."""

    def __init__(self, loaded: targets.Loaded) -> None:
        self._loaded = loaded
        self._taken = 0  # inputs of a first step, the state among them
        self._outputs: Tensors | None = None

    def at(self, case: goldens.Case) -> Run:
        """What runs this case: the artifact itself, but for a later step of a sequence."""
        before, self._outputs = self._outputs, None
        if case.step == 0:
            self._loaded.reset()
            self._taken = len(case.inputs)
        states = self._taken - len(case.inputs) if case.step else 0

        def run(inputs: Tensors) -> Tensors:
            if case.step and before is None:
                raise ArtifactError("the step before failed")
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
    """Copies, for what changes its inputs in place must not change the golden."""
    return tuple(t.to(device, copy=True) for t in inputs)


def _time(loaded: targets.Loaded, inputs: Tensors, runs: int, device: str) -> list[float]:
    """Milliseconds of each call from the initial state, the device synchronised before the clock is read."""
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
    """Peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
