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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote

import torch

from exporter import golden as goldens
from exporter import operators, parity, places, targets
from exporter.errors import ArtifactError, ContractError, ExporterError, UsageError
from exporter.flattening import Tensors, dtype_name
from exporter.isolate import stand_back
from exporter.precision import use_tf32
from exporter.serialization import to_json

PROTOCOL = 1
KINDS = {ArtifactError: "artifact", ContractError: "contract", UsageError: "usage"}


def serve_artifact(
    channel: socket.socket,
    target: str,
    path: str,
    golden_path: str,
    outputs: tuple[str, ...],
    options: targets.Options,
    ops: tuple[str, ...] = (),
) -> None:
    """A session of an artifact: no recipe and no model code is imported. `ops` is what its contract says."""
    configure(options)

    def load() -> targets.Loaded:
        operators.require(ops)
        return targets.get(target).load(Path(path), options)

    serve(channel, load, golden_path, outputs, options)


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
        operators.load(file)


def serve(
    channel: socket.socket,
    load: Callable[[], targets.Loaded],
    golden_path: str,
    outputs: tuple[str, ...],
    options: targets.Options,
) -> None:
    """Load, say so, and answer requests until `quit` or the end of input."""
    with channel.makefile("r", encoding="utf-8") as requests, channel.makefile("w", encoding="utf-8") as answers:
        try:
            started = time.perf_counter()
            loaded = load()
            _synchronize(options.device)
            load_s = time.perf_counter() - started
            judge = Judge(goldens.read(Path(golden_path)).of(options.precision), outputs)
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
    return places.located(places.message(error) or type(error).__name__, error)


def _answer(words: list[str], loaded: targets.Loaded, judge: Judge, device: str) -> dict[str, Any]:
    cases, run = judge.golden.cases, loaded.run
    match words:
        case ["check"]:
            return {
                "event": "check",
                "cases": [judge.check(run, case, device) for case in cases],
                "provider": loaded.provider(),
                "peak_rss_mb": peak_rss_mb(),
                "notes": loaded.notes(),
            }
        case ["time", runs, *name] if runs.isdigit():
            case = _find(cases, " ".join(name))
            return {
                "event": "time",
                "samples_ms": _time(run, case.inputs, int(runs), device),
                "provider": loaded.provider(),
                "peak_rss_mb": peak_rss_mb(),
            }
        case ["outputs", file]:
            given = [loaded.run(_place(case.inputs, device)) for case in goldens.samples(judge.golden)]
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

    def check(self, run: targets.Run, case: goldens.Case, device: str) -> dict[str, Any]:
        """One case of the `check` answer."""
        answer: dict[str, Any] = {"case": case.name, "seed": case.seed, "error": "", "outputs": []}
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


def _array(tensor: torch.Tensor) -> parity.Array:
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.numpy()


def _place(inputs: Tensors, device: str) -> Tensors:
    """Copies, for what changes its inputs in place must not change the golden."""
    return tuple(t.to(device, copy=True) for t in inputs)


def _time(run: targets.Run, inputs: Tensors, runs: int, device: str) -> list[float]:
    """Milliseconds of each call, the device synchronised before the clock is read."""
    placed = _place(inputs, device)
    _synchronize(device)
    samples = []
    for _ in range(runs):
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
