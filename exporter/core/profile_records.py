"""The records of a profile: what ran in one call, the work that the model's lines ask for, and the time they took."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

SCHEMA = 1


@dataclass(frozen=True)
class Origin:
    """A module, a line of the model's source and a node of the exported program; "" for what is unknown.

    `module` is "" for the model itself, and None if it is unknown. `bytes` is what its operator must read and
    write at least, if that is known of it alone.
    """

    module: str | None = None
    place: str = ""
    node: str = ""
    bytes: float = 0.0


@dataclass(frozen=True)
class Step:
    """An operator, kernel or node that ran in one call, with everything inside it.

    `start_us` counts from the beginning of the call. `events` is the number of events that the profiler recorded for
    it. `device_us` is the time of its kernels on the GPU; None on the CPU. `copy_us` is the part that copies tensors.
    `fallback` means that a general operator ran in place of a kernel of this route, or on another device. `backward`
    means that it ran in the backward pass of a training step.
    """

    name: str
    start_us: float
    duration_us: float
    events: int = 1
    copy_us: float = 0.0
    device_us: float | None = None
    origins: tuple[Origin, ...] = ()
    fallback: bool = False
    backward: bool = False

    @property
    def time_us(self) -> float:
        """Its time on the device that computes."""
        return self.duration_us if self.device_us is None else self.device_us


@dataclass(frozen=True)
class Steps:
    """One call of a variant: the steps in their order, and the call's duration with the profiler, in microseconds."""

    steps: tuple[Step, ...]
    duration_us: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """An operator of the model: where its code is, and what it must do at least.

    `flop` is its number of floating-point operations, None if it is unknown, and `bytes` the size of its inputs and
    outputs. `name` is that of its node in the exported program; "" for an operator of an eager call. `inputs` names the
    nodes whose values it uses.
    """

    name: str
    operator: str
    module: str
    place: str
    flop: float | None = None
    bytes: float = 0.0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Peaks:
    """What this machine reached in the same run: bytes per second, and floating-point operations per second by dtype.

    Measured with a copy of a large tensor and with a product of large matrices.
    """

    bytes_per_s: float
    flop_per_s: dict[str, float]


@dataclass(frozen=True)
class Line:
    """A line of the model's source in one module. Modules that differ only in numbers share a line if they are alike.

    `modules` is the number of modules, `flop` and `bytes` are those of all of them in one call. `text` is the source.
    """

    module: str
    place: str
    text: str = ""
    operators: tuple[str, ...] = ()
    modules: int = 1
    flop: float | None = None
    bytes: float = 0.0


@dataclass(frozen=True)
class LineTime:
    """The time of a line in one variant: milliseconds and calls per call of the model, and the share of its latency.

    `bandwidth` and `compute` are the fractions of the machine's peaks that it reaches; None if its work is unknown. In
    a training step, `backward_ms` is the part of `ms` in the backward pass.
    """

    line: int
    ms: float
    share: float
    calls: int
    copy_ms: float = 0.0
    bandwidth: float | None = None
    compute: float | None = None
    backward_ms: float = 0.0


@dataclass(frozen=True)
class Profiled:
    """The profile of one variant.

    `outside_ms` is the part of the latency outside every operator: Python, dispatch, and on a GPU the gaps between
    kernels. `elsewhere_ms` is the time of operators that no line of the model explains. `slowed` is the duration of a
    call with the profiler over one without it.
    """

    name: str
    session: str
    latency_ms: float = 0.0
    ci95_ms: tuple[float, float] = (0.0, 0.0)
    times: tuple[LineTime, ...] = ()
    outside_ms: float = 0.0
    elsewhere_ms: float = 0.0
    copy_ms: float = 0.0
    fallbacks: tuple[str, ...] = ()
    slowed: float = 1.0
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""

    @property
    def total(self) -> float:
        """The sum of all shares, which is 1 within the precision of the profile."""
        if not self.latency_ms:
            return 0.0
        return (sum(one.ms for one in self.times) + self.outside_ms + self.elsewhere_ms) / self.latency_ms


@dataclass(frozen=True)
class Profile:
    """Where the time of a bundle's variants goes, on the lines of the model's source.

    With `train`, the variants are training steps: eager, and forms of it that are compiled.
    """

    model: str
    device: str
    threads: int
    case: str
    peaks: Peaks
    lines: tuple[Line, ...]
    variants: tuple[Profiled, ...]
    advice: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    created: str = ""
    schema: int = SCHEMA
    train: bool = False
    notes: tuple[str, ...] = ()


def aligned(known: Sequence[str], found: Sequence[str]) -> list[int | None]:
    """Return for each name in `found` the index of its counterpart in `known`, both in the order of execution."""
    at: list[int | None] = [None] * len(found)
    for start, begin, size in difflib.SequenceMatcher(None, known, found, autojunk=False).get_matching_blocks():
        at[begin : begin + size] = range(start, start + size)
    return at
