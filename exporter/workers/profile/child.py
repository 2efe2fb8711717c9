"""The jobs of a profile, each in a process of its own."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from exporter import targets
from exporter.core import source_lines
from exporter.core.precisions import base
from exporter.core.profile_records import Peaks, Work
from exporter.core.records import EAGER
from exporter.evidence import golden as goldens
from exporter.workers import tasks
from exporter.workers.messages import Job
from exporter.workers.profile import Needed, Subject, operators
from exporter.workers.session import server

COPIED_BYTES = 1 << 28  # larger than caches
SIDES = (256, 512, 1024, 2048, 4096, 8192)  # of the matrices
ENOUGH_S = 0.02  # a product that takes this long is not multiplied by larger matrices
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TRIALS = 5


def need(channel: socket.socket, job: Job, golden: Path, precisions: tuple[str, ...]) -> Needed:
    """Return the work of the model for the golden's example, and what this machine reaches in these precisions."""
    server.configure(job.options)
    prepared = tasks.capture_again(job)
    program = tasks.program_of(job, prepared, EAGER)
    example = goldens.read(golden).cases[0].inputs
    placed = tuple(one.to(job.options.device, copy=True) for one in example)
    loaded = tasks.eager(program)
    recorder = operators.Eager(program.module, loaded.run, job.options.device)
    loaded.reset()
    recorder.record(placed, 1)
    loaded.reset()
    nodes: list[Work] = []
    refused = ""
    try:
        nodes = operators.of_program(program.artifact.module(check_guards=False), placed)
    except Exception as error:  # torch.export, or eager in the program: the profile does without it
        refused = source_lines.summary(error)
    return Needed(prepared, tuple(recorder.works), tuple(nodes), peaks(job.options.device, precisions), refused)


def build(channel: socket.socket, subject: Subject) -> None:
    """Export a variant again so that its kernels report to the profiler."""
    server.configure(subject.job.options)
    assert subject.artifact is not None
    program = tasks.program_of(subject.job, subject.prepared, subject.target)
    targets.get(subject.target).export(program, subject.artifact, subject.job.options)


def serve(channel: socket.socket, subject: Subject) -> None:
    """Serve a session of eager, or of a variant that is compiled in the process that runs it."""
    options = subject.job.options
    server.configure(options)

    def load() -> targets.Loaded:
        program = tasks.program_of(subject.job, subject.prepared, subject.target)
        if subject.target != EAGER:
            return targets.live(subject.target).live(program, options)
        loaded = tasks.eager(program)
        recorder = operators.Eager(program.module, loaded.run, options.device)
        return targets.Loaded(loaded.run, reset=loaded.reset, profile=recorder.record)

    outputs = tuple(spec.name for spec in subject.prepared.contract.outputs)
    server.serve(channel, load, str(subject.golden), outputs, options)


def peaks(device: str, precisions: tuple[str, ...]) -> Peaks:
    """Return what this machine reaches in these precisions and in float32."""
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    moved = 2 * COPIED_BYTES / _fastest(lambda: target.copy_(source), device)
    bases = map(base, precisions)
    dtypes = {"fp32": torch.float32} | {name: DTYPES[name] for name in bases if name in DTYPES}
    return Peaks(moved, {name: _rate(dtype, device) for name, dtype in dtypes.items()})


def _rate(dtype: torch.dtype, device: str) -> float:
    """Return the floating-point operations per second of a product of square matrices, large enough to be timed."""
    best = 0.0
    for side in SIDES:
        a = torch.randn(side, side, device=device).to(dtype)
        took = _fastest(functools.partial(torch.mm, a, a), device)
        best = max(best, 2 * side**3 / took)
        if took > ENOUGH_S:
            break
    return best


def _fastest(call: Callable[[], object], device: str) -> float:
    """Return the seconds of the fastest of some calls, after one that is not counted."""
    took = []
    for _ in range(TRIALS + 1):
        begun = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - begun)
    return min(took[1:])
