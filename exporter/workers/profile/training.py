"""The jobs of the profile of a training step, each in a process of its own."""

from __future__ import annotations

import bisect
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from exporter import targets
from exporter.core.profile_records import Origin, Steps
from exporter.evidence import golden as goldens
from exporter.model.tensors import Tensors
from exporter.workers.loading import load_model
from exporter.workers.messages import Job
from exporter.workers.profile import EAGER_STEP, Trained, child, operators, training_graphs, training_step
from exporter.workers.profile.training_step import Expected, TrainingStep
from exporter.workers.session import server


def need(channel: socket.socket, job: Job, golden: Path, expected: Path) -> Trained:
    """Return the work of a step for the golden's example, and write what it computes to the file `expected`."""
    server.configure(job.options)
    inputs = _example(golden, job.options.device)
    step = training_step.make(load_model(job), inputs)
    recorder = Eager(step, job.options.device)
    recorder.record(inputs, 1)
    step.reset()
    found = training_step.expect(step, inputs)
    found.save(expected)
    return Trained(tuple(recorder.works), child.peaks(job.options.device, ()), expected, found.random, found.notes)


def serve(channel: socket.socket, job: Job, form: str, golden: Path, expected: Path) -> None:
    """Serve a session of a form of the step. It is compared with eager's before the session is ready."""
    server.configure(job.options)
    device = job.options.device

    def load() -> targets.Loaded:
        inputs = _example(golden, device)
        first = training_step.make(load_model(job), inputs)
        if form == EAGER_STEP:
            return targets.Loaded(first.run, reset=first.reset, profile=Eager(first, device).record)
        make = lambda: replace(first, form=form)  # noqa: E731
        ran = training_graphs.compiled(make, inputs, Expected.read(expected), device)
        return targets.Loaded(ran.step.run, reset=ran.step.reset, profile=ran.record)

    server.serve(channel, load, str(golden), (), job.options)


def _example(golden: Path, device: str) -> Tensors:
    return tuple(one.to(device, copy=True) for one in goldens.read(golden).cases[0].inputs)


class Eager(operators.Eager):
    """Records eager steps.

    Autograd numbers its nodes in the order in which the forward pass makes them. An operator of the backward pass thus
    belongs to the line that ran when the number of its node was given out.

    Reference: the sequence numbers of torch.autograd.graph.Node, as torch.profiler's `sequence_nr` has them.
    """

    def __init__(self, step: TrainingStep, device: str) -> None:
        super().__init__(step.module, step.again, device)
        self.step = step
        self._backward: list[bool] = []
        self._numbers: list[int] = []
        self._lines: list[Origin] = []

    def where(self, running: Sequence[str]) -> Origin:
        """Return the origin of the next operator, or of the operator that it differentiates."""
        self._backward.append(self.step.in_backward)
        if not self.step.in_backward:
            origin = super().where(running)
            number = torch._C._autograd._get_sequence_nr() - 1  # of the node made last
            if not self._numbers or number > self._numbers[-1]:
                self._numbers.append(number)
                self._lines.append(origin)
            self._last = origin  # the backward pass begins at the last line
            return origin
        node = torch._C._current_autograd_node()
        if node is not None and not node.name().endswith("AccumulateGrad"):  # that follows the node it belongs to
            at = bisect.bisect_right(self._numbers, node._sequence_nr()) - 1
            self._last = self._lines[max(at, 0)]
        return self._last

    def _call(self, inputs: Tensors) -> Steps:
        self._backward, self._numbers, self._lines = [], [], []
        self._last = Origin()
        found = super()._call(inputs)
        flags = zip(found.steps, self._backward, strict=True)
        return replace(found, steps=tuple(replace(step, backward=backward) for step, backward in flags))
