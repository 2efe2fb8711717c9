"""Profile the variants of a bundle: find what the model's lines ask for, and record what runs.

This is the parent's side, which never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exporter.core.profile_records import Peaks, Work
from exporter.workers.messages import Job, Prepared

# Training steps: eager; the model compiled and the loss outside; both compiled, apart and as one.
EAGER_STEP, MODEL, APART, WHOLE = FORMS = ("train", "train:model", "train:apart", "train:whole")


@dataclass(frozen=True)
class Needed:
    """What the model asks for: the work of the operators of an eager call and of the exported program's nodes.

    `refused` is why there is no exported program, and `prepared` is what the other jobs start from.
    """

    prepared: Prepared
    eager: tuple[Work, ...]
    nodes: tuple[Work, ...]
    peaks: Peaks
    refused: str = ""


@dataclass(frozen=True)
class Subject:
    """A variant to profile that has to be built: `artifact` is where it goes, None if its session compiles it."""

    job: Job
    target: str
    golden: Path
    prepared: Prepared
    artifact: Path | None = None


@dataclass(frozen=True)
class Trained:
    """What a training step asks for: the work of its operators, in eager, and what it computes, in a file."""

    eager: tuple[Work, ...]
    peaks: Peaks
    expected: Path
    random: bool
    notes: tuple[str, ...] = ()
