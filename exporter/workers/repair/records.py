"""Records of a repair: what a child finds, what is proposed, and the report. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.core.contract import Narrowing
from exporter.core.contract_records import Contract
from exporter.core.parity_records import SizeLimit
from exporter.core.size_range import Sizes

SCHEMA = 1
Kind = Literal["branch", "check", "effect", "memo"]


@dataclass(frozen=True)
class Frame:
    """The part of the user's source that was running, in lines from 1 and UTF-8 columns from 0, as in `ast`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Obstacle:
    """Why there is no exported program. `frames` lead from the model's forward to the failing expression.

    `cause` is a name in exporter.core.causes, or "". `message` is torch's whole message, `text` its summary.
    """

    text: str
    message: str
    cause: str
    place: str
    remedy: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Attempt:
    """What a child found: whether the model runs, its contract, and torch.export's obstacle or limits."""

    obstacle: Obstacle | None
    sizes: Sizes
    contract: Contract | None  # None if the model does not run
    narrowings: tuple[Narrowing, ...] = ()
    limits: tuple[SizeLimit, ...] = ()
    files: tuple[str, ...] = ()  # the files that define the model's classes

    @property
    def accepted(self) -> bool:
        """Return whether torch.export accepts everything that the contract promises."""
        return self.obstacle is None and not self.narrowings and not self.limits


@dataclass(frozen=True)
class Site:
    """A test that a patch removes or rewrites, by its position in the original file.

    Only a `branch` chooses between values. A `check` raises, an `effect` prints or logs, and a `memo` fills a cache;
    exporter refuses a cache that makes equal calls differ.
    """

    file: str
    line: int
    column: int
    test: str
    kind: Kind

    @property
    def key(self) -> str:
        """Return the name that the instrumented source gives it."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Outcomes:
    """How often a test was true and false in the original model, and at how many different sizes."""

    place: str
    test: str
    true: int
    false: int
    true_sizes: int
    false_sizes: int


@dataclass(frozen=True)
class Recorded:
    """The calls of the original model: their number, the sizes, and the outcomes of the tests."""

    contract: Contract
    cases: int
    refused: int  # inputs for which the original raises
    sizes: tuple[str, ...]
    outcomes: tuple[Outcomes, ...]
    missing: tuple[str, ...] = ()  # what could not be exercised


@dataclass(frozen=True)
class Compared:
    """The patched model and its exported program, compared with the recorded calls. `problem` is "" if they agree."""

    problem: str
    max_abs: float = 0.0
    unchecked: int = 0  # inputs that the original refuses and the program takes
    inputs_kept: bool = False  # whether the original changes its inputs in place and the patched model does not


@dataclass(frozen=True)
class Step:
    """One change: what it does, where, and what the user should know about it."""

    text: str
    place: str
    note: str = ""


@dataclass(frozen=True)
class Tried:
    """A change that did not work, and why."""

    text: str
    place: str
    reason: str


@dataclass(frozen=True)
class Patch:
    """The changes to one file, as a unified diff."""

    file: str
    diff: str


@dataclass(frozen=True)
class Proof:
    """The evidence for a repair."""

    cases: int
    sizes: tuple[str, ...]
    max_abs: float  # largest difference of the program from the original model
    refused: int
    unchecked: int
    outcomes: tuple[Outcomes, ...]
    inputs_kept: bool  # as in Compared


@dataclass(frozen=True)
class Repair:
    """The complete report.

    `verdict` is `accepted` if torch.export takes the model as it is, `repaired` if the patch or the options were
    proven, and `refused` if nothing was.
    """

    model: str
    device: str
    sizes: Sizes
    verdict: Literal["accepted", "repaired", "refused"]
    cause: str
    place: str
    remedy: str
    steps: tuple[Step, ...] = ()
    options: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    tried: tuple[Tried, ...] = ()
    proof: Proof | None = None
    schema: int = SCHEMA
