"""What a target may say of itself beside the `Target` Protocol, and what holds where it does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

GB = 1e9


@dataclass(frozen=True)
class Need:
    """The memory that a step takes: so many times the weights, and so many bytes whatever the model.

    The built-in targets' are rounded up from proportional set sizes with GPT-2 of 0.4 billion parameters (1.42 GB;
    torch 2.14, 2026-11-22): the tree peaked at 7.1 GB in the export to compile and at 4.3 in onnx's, about 0.9 of it in
    processes that do not grow; a trace's job took 1.9 GB, a session of it 3.0, the golden's job 2.7. script and export
    are guesses from those.
    """

    weights: float
    fixed: float

    def of(self, weights: int) -> int:
        """Bytes, for a model whose weights take `weights` bytes."""
        return round(self.weights * weights + self.fixed)


@dataclass(frozen=True)
class Part:
    """A part of the machine or its software, and how it is: one line of `exporter doctor`."""

    level: Literal["ok", "note", "bad"]
    what: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class TritonBackend:
    """A backend of Triton's, and the file that it looks for."""

    name: str
    platform: str
    file: str
    named: bool = False  # whether it knows the tensors by their names
    batches: bool = True
    entries: bool = True  # whether it opens an artifact with several entries
    operators: tuple[str, ...] = ()  # namespaces outside torch's own that it registers


def _no_parts(probed: str) -> Iterable[Part]:
    return ()


@dataclass(frozen=True)
class Facts:
    """Optional attributes of a target's module, by their names there, with their defaults."""

    also_called: tuple[str, ...] = ()  # other names, for `did you mean`
    needs_module: bool | None = None  # whether it starts from program.module; None: where it needs no program
    assumes: tuple[str, ...] = ("graph", "guards", "code")  # which narrowings of the program hold for its artifacts
    cost: int = 1  # how long its export takes, roughly, against trace: the costliest starts first
    portable: bool = False  # whether its artifacts hold machine code and it follows Options.portable
    portability: int = 5  # rank for the goal portability: 0 moves most freely between machines
    companions: tuple[str, ...] = ()  # what may follow the artifact's name, of files beside it: .data
    libraries: tuple[str, ...] = ()  # importable packages whose code is never the model's, in tracebacks
    modules: tuple[str, ...] = ()  # what `exporter doctor` imports
    optional: tuple[str, ...] = ()  # distributions that it uses where they are installed
    export_need: Need = Need(3.8, 1.0 * GB)  # memory of an export
    session_need: Need = Need(2.0, 1.5 * GB)  # memory of a session
    runtime: str = ""  # the runtime of `exporter deploy docker` that takes its artifacts, beside cpp
    triton: TritonBackend | None = None
    # For `exporter doctor`: `probe` runs in a process of its own and may import anything; `examine` takes what it said.
    probe: Callable[[], str] = str
    examine: Callable[[str], Iterable[Part]] = _no_parts
    # For `exporter explain`: the heading of its section, and what finds the `Finding`s of exporter.workers.explain in a
    # Subject (exporter.workers.explain.subject). The sections of built-in targets are modules beside these.
    question: str = ""
    explain: Callable[[Any], Iterable[Any]] | None = None
    # For the comparison of two builds of an artifact, where its bytes tell too little: what computes, as bytes without
    # its numbers and without notes, and the numbers as NumPy arrays, in order and by name. ArtifactError where the file
    # cannot be read.
    parts: Callable[[Path], tuple[bytes, list[tuple[str, Any]]]] | None = None


def of(target: object) -> Facts:
    """What the target declares, with defaults for the rest."""
    return Facts(**{f.name: getattr(target, f.name) for f in fields(Facts) if hasattr(target, f.name)})
