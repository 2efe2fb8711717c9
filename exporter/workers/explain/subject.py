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

LARGEST = 16  # sizes up to this one are cheap, whatever the example's size is


@dataclass(frozen=True)
class Attempt:
    """The result of torch.export: a program or an error, and the sizes that it fixed or narrowed."""

    program: torch.export.ExportedProgram | None
    error: ExportError | None
    limits: tuple[SizeLimit, ...]
    narrowings: tuple[contract.Narrowing, ...]
    guards: tuple[tuple[str, str], ...]  # conditions on sizes, each with its line

    def require(self) -> torch.export.ExportedProgram:
        """Return the program. Raises torch.export's error, as an ExportError, if there is none."""
        if self.program is None:
            raise self.error or ExportError("torch.export returned no program")
        return self.program


@dataclass
class Subject:
    """A loaded model with its contract."""

    job: Job
    loaded: LoadedModel
    contract: Contract

    @property
    def model(self) -> torch.nn.Module:
        """Return the original model, not the flattened one."""
        return self.loaded.module.model

    @property
    def function(self) -> Contract:
        """Return the contract with the state among inputs and outputs, like the flattened module."""
        return contract.as_function(self.contract)

    @property
    def module(self) -> torch.nn.Module:
        """Return the flattened module, which takes tensors and returns a tuple of tensors."""
        return self.loaded.module

    def call(self, inputs: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the (args, kwargs) of the original model for flat inputs."""
        return self.loaded.module.example.rebuild(inputs)

    def inputs(self, sizes: dict[str, int], seed: int = 0) -> Tensors:
        """Return the inputs at these sizes, on the job's device."""
        return tuple(t.to(self.job.options.device) for t in self.loaded.arguments(self.contract, sizes, seed))

    @cached_property
    def example(self) -> Tensors:
        """Return the inputs at the sizes at which exports capture the model."""
        return self.inputs(probing.capture_sizes(self.loaded.base, self.loaded.symbols))

    @cached_property
    def captured(self) -> Attempt:
        """Run torch.export once for all sections."""
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
        """Return the golden's sizes, without the expensive ones."""
        plan = probing.probe_plan(self.loaded.base, self.loaded.symbols)
        base = self.loaded.base
        cheap = [s for s, _ in plan if all(s[name] <= max(LARGEST, 2 * base[name]) for name in s)]
        return [dict(pairs) for pairs in dict.fromkeys(tuple(s.items()) for s in cheap)]

    def probes(self) -> Iterator[tuple[str, Tensors]]:
        """Yield (name, inputs) at other sizes, and at the example's sizes with other values that the model accepts."""
        for sizes in self.sizes():
            yield probing.describe(sizes), self.inputs(sizes)
        limit_s = time_limit.of(lambda: eager.run(self.module, self.example, self.job.options.device))
        for name, changed in perturbations.changed(self.example).items():
            with contextlib.suppress(time_limit.OutOfTime):
                if eager.is_settled(self.module, changed, self.job.options.device, tolerances.of_outputs(()), limit_s):
                    yield f"{name} as values", changed
