"""The optional attributes of a target, with their defaults. The required ones are in the `Target` Protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from exporter.core.tuning_records import Choice

GB = 1e9


@dataclass(frozen=True)
class Need:
    """The memory that a step needs: a multiple of the size of the weights, plus a fixed number of bytes.

    The values of the built-in targets are rounded up from measured proportional set sizes, with a GPT-2 of 0.4 billion
    parameters (1.42 GB; torch 2.14, 2026-11-22). The process tree peaked at 7.1 GB while exporting to compile and at
    4.3 GB to onnx; about 0.9 GB of that was in processes that do not grow. The job of trace took 1.9 GB, its session
    3.0 GB, and the job of the golden 2.7 GB. The values of script and export are estimates from these.
    """

    weights: float
    fixed: float

    def of(self, weights: int) -> int:
        """Return the bytes needed for a model whose weights take `weights` bytes."""
        return round(self.weights * weights + self.fixed)


@dataclass(frozen=True)
class Part:
    """The condition of a part of the machine or its software: one line of `exporter doctor`."""

    level: Literal["ok", "note", "bad"]
    what: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class TritonBackend:
    """A backend of Triton and the name of its model file."""

    name: str
    platform: str
    file: str
    named: bool = False  # whether it addresses tensors by their names
    batches: bool = True
    entries: bool = True  # whether it supports artifacts with several entries
    operators: tuple[str, ...] = ()  # namespaces of the custom operators that it registers


@dataclass(frozen=True)
class Candidate:
    """A choice that --tune tries. One `at_load` is first tried by loading the same artifact with other options.

    `advice` is a choice at load that no artifact can carry: it is measured, and whoever loads the artifact makes it.
    `native` is one that only exporter-run has.
    """

    choice: Choice
    at_load: bool = False
    advice: bool = False
    native: bool = False


def _no_candidates(options: Any) -> Iterable[Candidate]:
    return ()


def _no_parts(probed: str) -> Iterable[Part]:
    return ()


@dataclass(frozen=True)
class Facts:
    """The optional attributes of a target's module, under the same names, with their defaults."""

    also_called: tuple[str, ...] = ()  # aliases, for `did you mean`
    needs_module: bool | None = None  # whether it needs program.module; None: yes, unless needs_program
    records_calls: bool = False  # whether its artifacts record operators like torch.export, if needs_program is false
    assumes: tuple[str, ...] = ("graph", "guards", "code")  # which narrowings of the program apply to its artifacts
    live_precisions: tuple[str, ...] | None = None  # of variants compiled just in time; None: those of the target
    cost: int = 1  # rough export time relative to trace; the slowest export starts first
    portable: bool = False  # whether its artifacts follow Options.portable
    portable_precisions: tuple[str, ...] | None = None  # the only precisions in which they do; None: all
    portability: int = 5  # rank for the goal `portability`: 0 is the most portable
    before_python: tuple[int, int] | None = None  # the first version of Python that it does not support
    companions: tuple[str, ...] = ()  # suffixes that companion files add to the artifact's name, such as .data
    libraries: tuple[str, ...] = ()  # packages to skip when looking for the model's lines in tracebacks
    modules: tuple[str, ...] = ()  # modules that `exporter doctor` imports
    optional: tuple[str, ...] = ()  # distributions that it uses if they are installed
    export_need: Need = Need(3.8, 1.0 * GB)  # memory of an export
    session_need: Need = Need(2.0, 1.5 * GB)  # memory of a session
    runtime: str = ""  # the runtime of `exporter deploy docker` for its artifacts, besides cpp
    triton: TritonBackend | None = None
    # For `exporter doctor`: `probe` runs in a separate process and may import anything; `examine` gets its result.
    probe: Callable[[], str] = str
    examine: Callable[[str], Iterable[Part]] = _no_parts
    # For `exporter explain`: the heading of its section, and a function from a Subject
    # (exporter.workers.explain.subject) to `Finding`s (exporter.workers.explain). The sections of built-in targets are
    # modules of exporter.workers.explain.
    question: str = ""
    explain: Callable[[Any], Iterable[Any]] | None = None
    nodes: bool = False  # whether exporter-run can time the nodes of its artifacts
    instrumented: bool = False  # whether a profile needs an artifact built with Options.profiled
    # For `exporter export --tune`: the choices to try for a variant with these Options, the most promising first.
    candidates: Callable[[Any], Iterable[Candidate]] = _no_candidates
    # What the first export on a machine has to do for all later ones, given the variant's Options. It runs while the
    # model is loaded. If it fails, the export does it.
    warm_up: Callable[[Any], None] | None = None
    # What exports import slowly (`module`), or call (`module:function`). On a machine without a driver for GPUs, the
    # process that jobs are forked from does so while the model is loaded, in order and up to the first that fails. It
    # must start no thread.
    preloads: tuple[str, ...] = ()
    # For comparing two builds of an artifact beyond their bytes: returns the computation as bytes, without weights and
    # notes, and the weights in order as (name, NumPy array). Raises ArtifactError if the file cannot be read.
    parts: Callable[[Path], tuple[bytes, list[tuple[str, Any]]]] | None = None


def of(target: object) -> Facts:
    """Return what the target declares, with defaults for the rest."""
    return Facts(**{f.name: getattr(target, f.name) for f in fields(Facts) if hasattr(target, f.name)})
