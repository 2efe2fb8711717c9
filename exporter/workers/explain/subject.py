"""The model under examination: loaded once, exported once, with inputs at other sizes and with other values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from exporter.core import contract, probing, time_limit, tolerances
from exporter.core.contract_records import Contract
from exporter.core.errors import ExportError
from exporter.core.parity_records import SizeLimit
from exporter.evidence import eager, narrowing, perturbations
from exporter.model import capture
from exporter.model.tensors import Tensors
from exporter.workers.explain.guards import Guards
from exporter.workers.loading import LoadedModel
from exporter.workers.messages import Job

LARGEST = 16  # a size up to this one is cheap, whatever the example's is


@dataclass(frozen=True)
class Attempt:
    """What torch.export gave: a program or an error, and what it fixed or narrowed."""

    program: torch.export.ExportedProgram | None
    error: ExportError | None
    limits: tuple[SizeLimit, ...]
    narrowings: tuple[contract.Narrowing, ...]
    guards: tuple[tuple[str, str], ...]  # conditions on sizes, each with its line

    def require(self) -> torch.export.ExportedProgram:
        """The program; raises the error when there is none."""
        if self.program is None:
            raise self.error or ExportError("torch.export gave no program")
        return self.program


@dataclass
class Subject:
    """A loaded model with its contract."""

    job: Job
    loaded: LoadedModel
    contract: Contract

    @property
    def model(self) -> torch.nn.Module:
        """The model itself, not the flat one."""
        return self.loaded.module.model

    @property
    def function(self) -> Contract:
        """The contract with the state among inputs and outputs, as the flat module has it."""
        return contract.as_function(self.contract)

    @property
    def module(self) -> torch.nn.Module:
        """The flat module: tensors in, a tuple of tensors out."""
        return self.loaded.module

    def call(self, inputs: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of the model itself."""
        return self.loaded.module.example.rebuild(inputs)

    def inputs(self, sizes: dict[str, int], seed: int = 0) -> Tensors:
        """Inputs on the device."""
        return tuple(t.to(self.job.options.device) for t in self.loaded.arguments(self.contract, sizes, seed))

    @cached_property
    def example(self) -> Tensors:
        """Inputs at the sizes at which exports capture."""
        return self.inputs(probing.capture_sizes(self.loaded.base, self.loaded.symbols))

    @cached_property
    def captured(self) -> Attempt:
        """torch.export, tried once for all sections."""
        loaded, failed = self.loaded, None
        limits: tuple[SizeLimit, ...] = ()
        found: list[contract.Narrowing] = []
        program = None
        with Guards() as guards:
            try:
                captured = capture.capture(self.module, self.example, self.function)
            except ExportError as error:
                failed = error
            else:
                program = captured.program
                device = self.job.options.device
                found = narrowing.find(captured, self.module, self.inputs, loaded.base, self.function, device)
                limits = tuple(narrowing.limits(captured, found, loaded.base))
        return Attempt(program, failed, limits, tuple(found), tuple(guards.found))

    def sizes(self) -> list[dict[str, int]]:
        """The golden's sizes that are not expensive."""
        plan = probing.probe_plan(self.loaded.base, self.loaded.symbols)
        base = self.loaded.base
        cheap = [s for s, _ in plan if all(s[name] <= max(LARGEST, 2 * base[name]) for name in s)]
        return [dict(pairs) for pairs in dict.fromkeys(tuple(s.items()) for s in cheap)]

    def probes(self) -> Iterator[tuple[str, Tensors]]:
        """Inputs at other sizes, and at the example's with other values, each with its name; what the model takes."""
        for sizes in self.sizes():
            yield probing.describe(sizes), self.inputs(sizes)
        limit_s = time_limit.of(lambda: eager.run(self.module, self.example, self.job.options.device))
        for name, changed in perturbations.changed(self.example).items():
            with contextlib.suppress(time_limit.OutOfTime):
                if eager.is_settled(self.module, changed, self.job.options.device, tolerances.FLOAT32, limit_s):
                    yield f"{name} as values", changed
