"""The manifest's records: frozen dataclasses, which `json_codec` writes as JSON and reads.

Numbers that could not be had are None. Times end in `_s` (seconds) or `_ms` (milliseconds), memory in `_mb` (10^6
bytes). `manifest.schema.json` beside this file describes the same for other tools.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from exporter.core.expressions import Expression

SCHEMA = 1  # of the manifest, and of whatever has no number of its own
CONTRACT_SCHEMAS = (1, 2)  # that are read; the last is what is written

Verdict = Literal["exact", "rounding", "drift", "quantized", "FAIL"]
EAGER = "eager"  # the baseline's name, and its target's
VERDICTS: tuple[Verdict, ...] = ("exact", "rounding", "drift", "quantized", "FAIL")
STATE = "state."  # begins the name of an input or output that is state
FP32 = "fp32"  # the usual precision: the model's own, with float32 that is float32
PRECISIONS = (FP32, "tf32", "bf16", "fp16", "int8")
DEVICES = ("cpu", "cuda")
# Bytes of an element, by torch's names of the dtypes that a contract may have.
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
Dim = int | str | None


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor: a dimension is a size, a symbol's name, an expression of one, or None for anything."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a live tensor, whose dimensions are all sizes. ValueError for any other."""
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(sizes) != len(self.shape):
            raise ValueError(f"{self.name} has dimensions that are no sizes: {self.shape}")
        return sizes


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a symbol, and the step that its size is a multiple of; or the sizes that alone it may have.

    Each of those `choices` has an entry of its own in the artifact.
    """

    min: int
    max: int
    choices: tuple[int, ...] = ()
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """ValueError for bounds or a step that leave no size, or have more than 64 bits."""
        if any(not -(1 << 63) <= number < 1 << 63 for number in (self.min, self.max, self.multiple_of, *self.choices)):
            raise ValueError("a range has more than 64 bits")
        if self.multiple_of < 1:
            raise ValueError(f"a step of {self.multiple_of} is none")
        if not self.sizes:
            of = f" multiple of {self.multiple_of}" if self.multiple_of > 1 else " size"
            raise ValueError(f"no{of} lies in {self.min} to {self.max}")

    @property
    def sizes(self) -> range | tuple[int, ...]:
        """Every size that the symbol may have, the smallest first."""
        step = self.multiple_of
        return self.choices or range(-(-self.min // step) * step, self.max + 1, step)

    @property
    def written(self) -> tuple[int, ...]:
        """As a recipe writes it: (min, max), or (min, max, step)."""
        return (self.min, self.max) if self.multiple_of == 1 else (self.min, self.max, self.multiple_of)

    def within(self, low: int, high: int, step: int = 1) -> Range:
        """What is left of it where sizes go from `low` to `high` in steps. ValueError when nothing is."""
        step = math.lcm(step, self.multiple_of)
        left = Range(max(low, self.min), min(high, self.max), multiple_of=step).sizes
        return Range(left[0], left[-1], multiple_of=step)

    def allows(self, size: int) -> bool:
        """Whether the symbol may have this size."""
        return size in self.sizes

    def allows_any(self, sizes: range) -> bool:
        """Whether the symbol may have one of these sizes, which follow each other; told without looking at each."""
        if self.choices:
            return any(choice in sizes for choice in self.choices)
        low, high = max(self.min, sizes.start), min(self.max, sizes.stop - 1)
        return -(-low // self.multiple_of) * self.multiple_of <= high

    def __str__(self) -> str:
        """`1 to 64`, `32 to 512, multiples of 2`, or `1, 8 or 32`."""
        if not self.choices:
            step = f", multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
            return f"{self.min} to {self.max}{step}"
        *others, last = map(str, self.choices)
        return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class Build:
    """What the machine code in an artifact was built for, and with.

    `isa` are the instruction sets that it may use, as /proc/cpuinfo names them; `level` is what they are together where
    that is a known set, as x86-64-v3. `capability` is the GPU's compute capability, as 9.0; `cuda` and `driver` are
    versions. Those three are empty where nothing runs on a GPU.
    """

    isa: tuple[str, ...] = ()
    level: str = ""
    capability: str = ""
    cuda: str = ""
    driver: str = ""


@dataclass(frozen=True)
class Values:
    """A tensor's values: `data` is base64 of its bytes, contiguous and little-endian."""

    shape: tuple[int, ...]
    data: str


@dataclass(frozen=True)
class StateTensor:
    """One tensor of state. `initial` is broadcast to `shape`; a number fills it (0 or 1 where it is bool)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    initial: int | float | Values

    @property
    def spec(self) -> TensorSpec:
        """As an input or output of an artifact that keeps it outside."""
        return TensorSpec(f"{STATE}{self.name}", self.dtype, self.shape)


@dataclass(frozen=True)
class KeptState:
    """What a call leaves for the next.

    Kept `inside`, the artifact carries it from call to call, until it is reset. Kept `outside`, the last inputs and the
    last outputs of the artifact are the state, in this order, each called `state.NAME`.
    """

    kept: Literal["inside", "outside"]
    tensors: tuple[StateTensor, ...]


@dataclass(frozen=True)
class Contract:
    """What an artifact takes and gives. `constants` are inputs of the model that are baked in: scalars and flags.

    `ops` are namespaces of operators outside torch's own that the artifact calls. `precision` is what it computes in;
    its inputs and outputs are the model's own. `build` is there where the artifact holds machine code, `state` where
    a call leaves something for the next.
    """

    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    symbols: dict[str, Range]
    target: str = ""
    device: str = "cpu"
    torch: str = ""
    constants: dict[str, bool | int | float | str] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    precision: str = FP32
    build: Build | None = None
    state: KeptState | None = None
    schema: int = CONTRACT_SCHEMAS[-1]

    def __post_init__(self) -> None:
        """ValueError for a dimension whose symbol has no range."""
        state = tuple(tensor.spec for tensor in self.state.tensors) if self.state else ()
        for spec in (*self.inputs, *self.outputs, *state):
            for dim in spec.shape:
                if isinstance(dim, str) and Expression.parse(dim).name not in self.symbols:
                    raise ValueError(f"{spec.name} has a dimension {dim}, which has no range")


@dataclass(frozen=True)
class Tolerance:
    """`rtol` and `atol` as in torch.allclose; `k` bounds the RMSE against eager's own.

    With `min_cosine`, an output that is as near as this by its direction passes too, as `quantized`.
    """

    rtol: float
    atol: float
    k: float
    min_cosine: float | None = None


@dataclass(frozen=True)
class CaseRecord:
    """One case of the golden.

    `sizes` are by symbol. `values` names what stands in the place of drawn values (`zeros`, `large`, ...). `sample`
    counts the recipe's own inputs from 0, and `step` the calls of a sequence where the model keeps state; else they are
    None.
    """

    name: str
    seed: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    values: str = ""
    sample: int | None = None
    step: int | None = None

    def __hash__(self) -> int:
        """By what it is called: no two cases of a golden share that."""
        return hash((self.name, self.seed))

    def __str__(self) -> str:
        """`batch=2 zeros`, or `batch=2 seed 1`."""
        return f"{self.name} seed {self.seed}" if self.seed else self.name

    @classmethod
    def of_text(cls, text: str) -> CaseRecord:
        """A case as manifests and goldens named it before they had fields for it."""
        name, _, seed = text.partition(" seed ")
        sizes = {symbol: int(size) for symbol, size in _SIZE.findall(name)}
        step = _STEP.search(name)
        return cls(name, int(seed or 0), sizes, step=int(step[1]) - 1 if step else None)


_SIZE = re.compile(r"(\S+)=(\d+)")
_STEP = re.compile(r" step (\d+)$")


@dataclass(frozen=True)
class FixedSize:
    """A symbol that an artifact takes at one size alone, though its contract lets it move."""

    symbol: str
    size: int

    def __str__(self) -> str:
        """`batch is fixed at 2`."""
        return f"{self.symbol} is fixed at {self.size}"


@dataclass(frozen=True)
class SizeLimit:
    """What an exporter (`by`) made of a size that the contract lets move, and the model's line that is to blame.

    `of` is an expression of the `symbols`. It was `fixed` at the number `to`; or it is taken only in `steps`, of which
    `to` is the formula in n; or it is allowed only in the `range` that `to` is, and was checked beyond.
    """

    of: str
    rule: Literal["fixed", "steps", "range"]
    to: str
    symbols: tuple[str, ...]
    place: str = ""
    by: str = "torch.export"

    @property
    def follows(self) -> bool:
        """Whether it is no symbol's own size that was fixed, but one that follows from it."""
        return self.rule == "fixed" and self.of not in self.symbols

    def __str__(self) -> str:
        """In words, with the place in brackets."""
        where = f" ({self.place})" if self.place else ""
        if self.rule == "fixed":
            return f"{self.by} fixed {self.of} at {self.to}{where}"
        if self.rule == "steps":
            return f"{self.by} takes {self.of} only as {self.to}{where}"
        return f"{self.by} allows {self.of} only {self.to}; checked beyond that{where}"


@dataclass(frozen=True)
class Warned:
    """What an exporter warned of, with the source line that it named.

    `unrecorded` says that the line changes a tensor in a way that no trace and no graph records.
    """

    message: str
    place: str = ""
    unrecorded: bool = False

    def __str__(self) -> str:
        """`model.py:3: message`."""
        return f"{self.place}: {self.message}" if self.place else self.message

    @classmethod
    def of_text(cls, text: str) -> Warned:
        """A warning as manifests held it before they had a field for its place."""
        return cls(text)


@dataclass(frozen=True)
class CaseParity:
    """One output at one case and seed; `output` is empty, and all is FAIL, where the case itself failed."""

    case: str
    seed: int
    output: str
    verdict: Verdict
    max_abs: float | None = None
    rmse_ratio: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class Parity:
    """The worst over all outputs and cases, each number by itself; a session's has the parts too.

    `refused` are cases beside those compared: of sizes that the artifact does not promise, and its contract refuses.
    `unpropagated` says where NaN or infinity ends in the artifact and not in eager; None where that was not tried.
    """

    verdict: Verdict
    max_abs: float | None
    max_rel: float | None
    rmse_ratio: float | None
    cosine: float | None
    worst: str
    reason: str = ""
    cases: int = 0
    parts: tuple[CaseParity, ...] = ()
    refused: int = 0
    unpropagated: tuple[str, ...] | None = None
    fixed: tuple[FixedSize, ...] = ()


@dataclass(frozen=True)
class ArtifactRecord:
    """A file of the bundle, by its path in it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Lifecycle:
    """What a variant costs before it serves; all but `export_s` are of its Python session."""

    export_s: float | None = None
    load_s: float | None = None
    first_call_ms: float | None = None
    peak_rss_mb: float | None = None
    cached_call_ms: float | None = None


@dataclass(frozen=True)
class SessionRecord:
    """One artifact in one language: what it took to load, and its parity there.

    `cached_call_ms` is the first call of another process, which started from what this one left in its cache; `gpu_mb`
    is by how much the GPU's memory in use grew while this session was opened and checked, with nothing else running.
    """

    session: str
    status: Literal["passed", "failed"]
    stage: str = ""
    reason: str = ""
    remedy: str = ""
    cause: str = ""  # the name of a known one
    provider: str = ""
    load_s: float | None = None
    first_call_ms: float | None = None
    peak_rss_mb: float | None = None
    parity: Parity | None = None
    cached_call_ms: float | None = None
    gpu_mb: float | None = None


BEYOND = 10  # samples beyond a percentile, without which it says little more than the largest sample


def runs_for(percentile: float) -> int:
    """How many samples a percentile wants, so that BEYOND of them lie beyond it."""
    return math.ceil(round(BEYOND * 100 / (100 - percentile), 6))


@dataclass(frozen=True)
class MachineLoad:
    """What went on beside a measurement: shares of the CPUs that it might use.

    `others` is of other processes, `steal` of other guests of the host; `throttled` is the share of the time for which
    a quota stopped us, `hot` how often a core slowed down for heat. `load` is the load average at the end.
    """

    cpus: int
    others: float
    steal: float
    throttled: float
    hot: int
    load: float

    @property
    def lost(self) -> float:
        """The share of the CPUs that was not to be had."""
        return min(self.others + self.steal + self.throttled, 1.0)

    @property
    def busy(self) -> bool:
        """Whether that is more than a quiet machine's own upkeep."""
        return self.others > 0.1 or self.steal > 0.02 or self.throttled > 0.01 or self.hot > 0

    def describe(self) -> str:
        """What there was, in words."""
        said = [f"other processes took {self.others:.0%} of {self.cpus} CPUs"] if self.others >= 0.01 else []
        said += [f"other guests of the host {self.steal:.0%}"] if self.steal >= 0.005 else []
        said += [f"a quota stopped it for {self.throttled:.0%} of the time"] if self.throttled >= 0.005 else []
        said += [f"cores slowed down for heat {self.hot} times"] if self.hot else []
        return ", ".join([*said, f"load {self.load:.1f}"])


@dataclass(frozen=True)
class Timing:
    """Steady-state latency of one session. `speedup` is eager's median over this one's, with its 95% interval.

    A percentile is None where fewer than BEYOND samples lie beyond it.
    """

    median_ms: float
    p90_ms: float | None
    p99_ms: float | None
    min_ms: float
    max_ms: float
    ci95_ms: tuple[float, float]
    runs: int
    stable: bool
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    outliers: int = 0


@dataclass(frozen=True)
class VariantRecord:
    """One row's worth: a target with its settings. It is `pending` until its outputs have been checked."""

    name: str
    target: str
    status: Literal["pending", "passed", "failed"]
    stage: str = ""
    reason: str = ""
    remedy: str = ""
    cause: str = ""  # the name of a known one
    reproduce: str = ""
    log: str = ""
    artifact: ArtifactRecord | None = None
    companions: tuple[ArtifactRecord, ...] = ()
    contract: Contract | None = None
    fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    limits: tuple[SizeLimit, ...] = ()
    untimed: str = ""  # why its sessions were not timed where others were
    parity: Parity | None = None
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    sessions: tuple[SessionRecord, ...] = ()
    timings: dict[str, Timing] = field(default_factory=dict)
    sweep: dict[str, dict[str, Timing]] = field(default_factory=dict)  # timings by the point of the sweep
    metric: float | None = None  # of its Python session
    rejected: tuple[
        ArtifactRecord, ...
    ] = ()  # its files where it failed when it was judged, by their path: rejected/NAME

    @property
    def quantized(self) -> bool:
        """Whether it computes in integers."""
        return self.contract is not None and self.contract.precision == "int8"

    @property
    def files(self) -> tuple[ArtifactRecord, ...]:
        """The artifact and the files that belong to it."""
        return (*((self.artifact,) if self.artifact else ()), *self.companions)


@dataclass(frozen=True)
class ModelRecord:
    """Which model it was, and with which weights.

    `origin` is where pretrained weights were published, a package URL or another; `licence` is theirs. Either is empty
    where nobody says.
    """

    name: str
    source: str
    weights: str
    seed: int
    parameters: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    origin: str = ""
    licence: str = ""


@dataclass(frozen=True)
class GoldenRecord:
    """The golden: its file, its cases, and the noise of eager itself against the reference.

    `unsteady` is why eager gives other values at a second run; "" where it is repeatable.
    """

    file: ArtifactRecord
    cases: tuple[CaseRecord, ...]
    reference: str
    tolerance: Tolerance
    eager_rmse: float | None
    repeatable: bool
    tolerances: dict[str, Tolerance] = field(default_factory=dict)  # of other precisions than fp32
    unsteady: str = ""


@dataclass(frozen=True)
class MetricRecord:
    """The recipe's metric, higher is better: the mean over its samples of eager's outputs, and the bounds asked for."""

    eager: float
    samples: int
    least: float | None = None
    most_loss: float | None = None  # below eager's


@dataclass(frozen=True)
class Goal:
    """What the recommendation looks for, and the bounds that it keeps: p99 latency, size of all files, worst cosine."""

    name: Literal["latency", "throughput", "size", "portability"] = "latency"
    max_p99_ms: float | None = None
    max_mb: float | None = None
    min_cosine: float | None = None
    needs: Literal["", "cpp"] = ""


@dataclass(frozen=True)
class Manifest:
    """All that happened in one run.

    Speed-ups are over the row `baseline`. `points` are what was timed: sizes by the name of their golden case.
    """

    model: ModelRecord
    device: str
    threads: int
    command: str
    created: str
    exporter: str
    status: Literal["running", "complete", "failed", "interrupted"] = "running"
    environment: dict[str, str] = field(default_factory=dict)
    contract: Contract | None = None
    golden: GoldenRecord | None = None
    variants: tuple[VariantRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    untimed: dict[str, str] = field(default_factory=dict)  # points at which the baseline failed, and why
    samples: ArtifactRecord | None = None
    goal: Goal = field(default_factory=Goal)
    points: dict[str, dict[str, int]] = field(default_factory=dict)  # of a sweep, the example first
    baseline: str = EAGER
    metric: MetricRecord | None = None
    machine: MachineLoad | None = None  # while the timings were taken
    schema: int = SCHEMA

    @property
    def passes(self) -> bool:
        """Whether a variant passed: without one, a bundle takes no other's place."""
        return any(variant.status == "passed" for variant in self.variants if variant.name != EAGER)

    @property
    def files(self) -> tuple[ArtifactRecord, ...]:
        """Every file of the bundle but the manifest itself and the logs."""
        shared = (self.golden.file if self.golden else None, self.samples)
        own = (file for variant in self.variants for file in variant.files)
        return (*(file for file in shared if file), *own)
