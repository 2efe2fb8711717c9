"""The manifest's records: frozen dataclasses, to and from JSON.

Numbers that could not be had are None. Times end in `_s` (seconds) or `_ms` (milliseconds), memory in `_mb` (10^6
bytes). `manifest.schema.json` beside this file describes the same for other tools.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from exporter import places
from exporter.errors import ArtifactError
from exporter.expressions import Expression

SCHEMA = 1

Verdict = Literal["exact", "rounding", "drift", "quantized", "FAIL"]
EAGER = "eager"  # the baseline's name, and its target's
VERDICTS: tuple[Verdict, ...] = ("exact", "rounding", "drift", "quantized", "FAIL")
FP32 = "fp32"  # the usual precision: the model's own, with float32 that is float32
PRECISIONS = (FP32, "tf32", "bf16", "fp16", "int8")
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
    """Inclusive bounds of a symbol; or the sizes, one entry of the artifact for each, that alone it may have."""

    min: int
    max: int
    choices: tuple[int, ...] = ()

    def allows(self, size: int) -> bool:
        """Whether the symbol may have this size."""
        return size in self.choices if self.choices else self.min <= size <= self.max

    def __str__(self) -> str:
        """`1 to 64`, or `1, 8 or 32`."""
        *others, last = map(str, self.choices or (self.max,))
        return f"{', '.join(others)} or {last}" if others else last if self.choices else f"{self.min} to {last}"


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
class Contract:
    """What an artifact takes and gives. `constants` are inputs of the model that are baked in: scalars and flags.

    `ops` are namespaces of operators outside torch's own that the artifact calls. `precision` is what it computes in;
    its inputs and outputs are the model's own. `build` is there where the artifact holds machine code.
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
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """ValueError for a dimension whose symbol has no range."""
        for spec in (*self.inputs, *self.outputs):
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
    """The worst over all outputs and cases, each number by itself; a session's has the parts too."""

    verdict: Verdict
    max_abs: float | None
    max_rel: float | None
    rmse_ratio: float | None
    cosine: float | None
    worst: str
    reason: str = ""
    cases: int = 0
    parts: tuple[CaseParity, ...] = ()


@dataclass(frozen=True)
class ArtifactRecord:
    """A file of the bundle."""

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
    provider: str = ""
    load_s: float | None = None
    first_call_ms: float | None = None
    peak_rss_mb: float | None = None
    parity: Parity | None = None
    cached_call_ms: float | None = None
    gpu_mb: float | None = None


@dataclass(frozen=True)
class Timing:
    """Steady-state latency of one session. `speedup` is eager's median over this one's, with its 95% interval."""

    median_ms: float
    p90_ms: float
    p99_ms: float
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
    """One row's worth: a target with its settings."""

    name: str
    target: str
    status: Literal["passed", "failed"]
    stage: str = ""
    reason: str = ""
    remedy: str = ""
    reproduce: str = ""
    log: str = ""
    artifact: ArtifactRecord | None = None
    companions: tuple[ArtifactRecord, ...] = ()
    contract: Contract | None = None
    fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    parity: Parity | None = None
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    sessions: tuple[SessionRecord, ...] = ()
    timings: dict[str, Timing] = field(default_factory=dict)
    sweep: dict[str, dict[str, Timing]] = field(default_factory=dict)  # timings by the point of the sweep

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
    """The golden: its file, its cases, and the noise of eager itself against the reference."""

    file: ArtifactRecord
    cases: tuple[str, ...]
    reference: str
    tolerance: Tolerance
    eager_rmse: float | None
    repeatable: bool
    tolerances: dict[str, Tolerance] = field(default_factory=dict)  # of other precisions than fp32


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
    samples: ArtifactRecord | None = None
    goal: Goal = field(default_factory=Goal)
    points: dict[str, dict[str, int]] = field(default_factory=dict)  # of a sweep, the example first
    baseline: str = EAGER
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


Record = TypeVar("Record")
LARGEST = 1e100  # so that sums, ratios and other units of what is recorded are finite too


def to_json(record: Any, indent: int | None = 2) -> str:
    """The record as JSON that `from_json` reads.

    NaN, infinities and what no computation should come to become null; control characters of strings are replaced.
    """
    return json.dumps(_plain(dataclasses.asdict(record)), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, str):
        return places.printable(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """Read a record; ArtifactError when the text is not JSON, of another schema, or of another form.

    What a terminal would obey is taken out of its strings.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("not an object")
        if data.get("schema", SCHEMA) != SCHEMA:
            raise ArtifactError(
                f"schema {data['schema']!r} is not known, only {SCHEMA}", "use the exporter release that wrote it"
            )
        return typing.cast(Record, _decode(kind, data, kind.__name__))
    except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"not a valid {kind.__name__}: {error}") from error


def _decode(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise TypeError(f"{where} is {value!r}, not one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        return _decode_tuple(args, value, where)
    if origin is dict:
        _expect(dict, value, where)
        return {_decode(str, key, where): _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    _expect(kind, value, where)
    if kind is float and not abs(value) <= LARGEST:
        raise TypeError(f"{where} is {value}, which nothing comes to")
    if kind is int and value.bit_length() > 64:
        raise TypeError(f"{where} has more than 64 bits")
    return places.printable(value) if kind is str else value


def _decode_record(kind: type, value: Any, where: str) -> Any:
    _expect(dict, value, where)
    hints = typing.get_type_hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise TypeError(f"{where} has no field {sorted(unknown)[0]!r}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _decode_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    problem: Exception = TypeError(f"{where} may not be {value!r}")
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value, where)
        except (TypeError, ValueError) as error:
            problem = error
    raise problem


def _decode_tuple(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(list, value, where)
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    if len(kinds) != len(value):
        raise TypeError(f"{where} has {len(value)} items, not {len(kinds)}")
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))


def _expect(kind: type, value: Any, where: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{where} is {value!r}, not {kind.__name__}")
