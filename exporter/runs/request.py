"""What the user asked for, and the command that asks for a part of it again."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from exporter import targets
from exporter.core import machine_code
from exporter.core.errors import UsageError
from exporter.core.json_codec import LARGEST
from exporter.core.limits import MAX_THREADS
from exporter.core.records import FP32, Goal, Range
from exporter.model.recipes import Source
from exporter.workers.messages import Job

STATES = ("carry", "inputs")  # who keeps what a call leaves for the next: the artifact, or its caller


def require_threads(threads: int) -> None:
    """UsageError for a number of threads that no process can have."""
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads is {threads}", f"give 1 to {MAX_THREADS}")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    model: str
    source: Source
    variants: tuple[targets.Variant, ...]
    out: Path
    device: str = "cpu"
    sizes: dict[str, int] = field(default_factory=dict)
    sweep: dict[str, tuple[int, ...]] = field(default_factory=dict)  # sizes that are timed, the example's first
    ranges: dict[str, Range] = field(default_factory=dict)
    dynamic: str = "all"
    state: str = "carry"
    weights: str = "auto"
    seed: int = 0
    threads: int = 1
    time_budget: float = 5.0
    wait_quiet: float = 0.0  # seconds to wait for a quiet machine before anything is timed
    least_runs: int = 0  # of each variant, where a percentile is asked for
    timeout: float = 1800.0
    bench: bool = True
    memory_limit_gb: float = 0.0
    rtol: float | None = None
    atol: float | None = None
    min_metric: float | None = None
    max_metric_loss: float | None = None
    opset: int | None = None
    allow_cpu_fallback: bool = False
    cuda_graphs: bool = False
    fullgraph: bool = False
    portable: bool = False
    ops_libs: tuple[str, ...] = ()
    replace: bool = False  # a bundle from which something is lost that passes in it
    command: str = ""
    asked: str = ""  # the model as the user wrote it, for commands that reproduce a step
    warnings: tuple[str, ...] = ()  # about the request itself
    goal: Goal = field(default_factory=Goal)

    @property
    def precisions(self) -> tuple[str, ...]:
        """All that a variant computes in, but the usual one."""
        return tuple(dict.fromkeys(v.precision for v in self.variants if v.precision != FP32))

    @property
    def needs_program(self) -> bool:
        """Whether torch.export has to be asked."""
        return any(targets.get(v.target).needs_program and not targets.is_live(v) for v in self.variants)

    def validate(self) -> None:
        """UsageError where it cannot be met."""
        require_threads(self.threads)
        if not all(tolerance is None or 0 <= tolerance <= LARGEST for tolerance in (self.rtol, self.atol)):
            raise UsageError("a tolerance is no finite number from 0 on", "give --rtol and --atol such, as 1e-3")
        if not all(bound is None or math.isfinite(bound) for bound in (self.min_metric, self.max_metric_loss)):
            raise UsageError("a bound of the metric is no finite number", "give --min-metric 0.9, as the metric counts")
        if "tf32" in self.precisions and self.device == "cpu":
            raise UsageError("tf32 is computed by NVIDIA's GPUs alone", "leave it out, or give --device cuda")
        if self.fullgraph and not any(map(targets.is_live, self.variants)):
            remedy = "leave it out, or ask for compile:default"
            raise UsageError("--fullgraph is for what is compiled just in time", remedy)
        if self.portable and not any(targets.is_portable(v) for v in self.variants):
            raise UsageError("--portable is for packages, which compile makes", "leave it out, or ask for compile")
        if self.state not in STATES:
            raise UsageError(f"there is no way {self.state!r} to keep state", f"choose {' or '.join(STATES)}")
        if self.portable:
            machine_code.require_portable()

    def job(self, work: Path) -> Job:
        """What its jobs need to know, with `work` for their temporary files."""
        options = targets.Options(
            device=self.device,
            threads=self.threads,
            opset=self.opset,
            allow_cpu_fallback=self.allow_cpu_fallback,
            cuda_graphs=self.cuda_graphs,
            portable=self.portable,
            memory_limit=round(self.memory_limit_gb * 1e9),
            ops_libs=self.ops_libs,
            scratch=str(work),
            fullgraph=self.fullgraph,
        )
        return Job(
            self.model,
            self.source,
            self.weights,
            self.seed,
            self.sizes,
            work,
            options,
            self.ranges,
            self.dynamic,
            self.sweep,
            self.state,
        )

    def reproduce(self, name: str) -> str:
        """A command that runs one variant again, with every option that bears on it and is not the default."""
        if self.source.kind == "memory":
            return f"exporter.export(model, inputs, targets={name!r}, out={f'{self.out}-again'!r})"
        words = ["exporter", "export", self.asked or self.model, "--targets", name, "--device", self.device]
        words += ["--seed", str(self.seed), "--weights", self.weights, "--threads", str(self.threads)]
        for size, value in self.sizes.items():
            others = (other for other in self.sweep.get(size, ()) if other != value)
            words += ["--size", f"{size}={','.join(map(str, (value, *others)))}"]
        for size, bounds in self.ranges.items():
            if bounds.choices:
                words += ["--specialize", f"{size}={','.join(map(str, bounds.choices))}"]
            else:
                step = f"..{bounds.multiple_of}" if bounds.multiple_of > 1 else ""
                words += ["--size", f"{size}={bounds.min}..{bounds.max}{step}"]
        words += ["--dynamic", self.dynamic] if self.dynamic != "all" else []
        words += ["--state", self.state] if self.state != "carry" else []
        words += ["--task", self.source.task] if self.source.task else []
        words += ["--checkpoint", self.source.checkpoint] if self.source.checkpoint else []
        words += ["--allow-partial"] if self.source.allow_partial else []
        if self.source.inputs_file:
            words += ["--inputs", self.source.inputs_file]
        words += [word for dim in self.source.dims for word in ("--dim", str(dim))]
        words += [word for name in self.source.leave_out for word in ("--leave-out", name)]
        metric = (("--min-metric", self.min_metric), ("--max-metric-loss", self.max_metric_loss))
        for option, given in (("--rtol", self.rtol), ("--atol", self.atol), *metric, ("--opset", self.opset)):
            words += [] if given is None else [option, str(given)]
        words += ["--allow-cpu-fallback"] if self.allow_cpu_fallback else []
        words += ["--cuda-graphs"] if self.cuda_graphs else []
        words += ["--fullgraph"] if self.fullgraph else []
        words += ["--portable"] if self.portable else []
        words += [word for file in self.ops_libs for word in ("--ops-lib", file)]
        words += ["--memory-limit", str(self.memory_limit_gb)] if self.memory_limit_gb else []
        words += ["--time-budget", f"{self.time_budget:g}"] if self.time_budget != Request.time_budget else []
        words += ["--timeout", f"{self.timeout:g}"] if self.timeout != Request.timeout else []
        words += [] if self.bench else ["--no-bench"]
        return shlex.join([*words, "--out", f"{self.out}-again", "-v"])
