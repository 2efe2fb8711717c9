"""The manifest's records: frozen dataclasses, which `json_codec` writes as JSON and reads.

Numbers that could not be had are None. Times end in `_s` (seconds) or `_ms` (milliseconds), memory in `_mb` (10^6
bytes). `manifest.schema.json` beside this file describes the same for other tools.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from exporter.core.expressions import Expression
from exporter.core.json_schema import described
from exporter.core.option import option
from exporter.core.settings import RunSettings, SizeSettings, SourceSettings
from exporter.core.size_range import Range as Range

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

    name: str = described("Its name.")
    dtype: str = described("Its dtype, by torch's name without `torch.`.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a live tensor, whose dimensions are all sizes. ValueError for any other."""
        sizes = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(sizes) != len(self.shape):
            raise ValueError(f"{self.name} has dimensions that are no sizes: {self.shape}")
        return sizes


@dataclass(frozen=True)
class Build:
    """What the machine code in an artifact was built for, and with.

    `isa` are the instruction sets that it may use, as /proc/cpuinfo names them; `level` is what they are together where
    that is a known set, as x86-64-v3. `capability` is the GPU's compute capability, as 9.0; `cuda` and `driver` are
    versions. Those three are empty where nothing runs on a GPU.
    """

    isa: tuple[str, ...] = described("Instruction sets that it may use, as Linux names them.", ())
    level: str = described("What they are together, such as x86-64-v3; empty where they are one CPU's own.", "")
    capability: str = described("Compute capability of the GPU, such as 9.0; empty where nothing runs on one.", "")
    cuda: str = described("Version of CUDA; empty where nothing runs on a GPU.", "")
    driver: str = described("Version of NVIDIA's driver; empty where it is not known.", "")


@dataclass(frozen=True)
class Values:
    """A tensor's values: `data` is base64 of its bytes, contiguous and little-endian."""

    shape: tuple[int, ...] = described("Its sizes.", minimum=0)
    data: str = described("Its bytes, contiguous and little-endian.", contentEncoding="base64")


@dataclass(frozen=True)
class StateTensor:
    """One tensor of state. `initial` is broadcast to `shape`; a number fills it (0 or 1 where it is bool)."""

    name: str = described("Where the model keeps it.")
    dtype: str = described("torch's name of the dtype.")
    shape: tuple[Dim, ...] = described("Its dimensions.", minimum=0)
    initial: int | float | Values = described(
        "What it is before the first call, broadcast to the shape: a number that fills it, or values."
    )

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

    kept: Literal["inside", "outside"] = described(
        "inside: the artifact carries it. outside: its last inputs and its last outputs are the state, called "
        "state.NAME."
    )
    tensors: tuple[StateTensor, ...] = described("The tensors of the state, in order.", minItems=1)


@dataclass(frozen=True)
class Contract:
    """What an artifact takes and gives. `constants` are inputs of the model that are baked in: scalars and flags.

    `ops` are namespaces of operators outside torch's own that the artifact calls. `precision` is what it computes in;
    its inputs and outputs are the model's own. `build` is there where the artifact holds machine code, `state` where
    a call leaves something for the next.
    """

    model: str = described("The model's name.")
    inputs: tuple[TensorSpec, ...] = described("Inputs, in the order in which they are passed.")
    outputs: tuple[TensorSpec, ...] = described("Outputs, in order.")
    symbols: dict[str, Range] = described("Bounds of each symbol.")
    target: str = described("The target of the artifact; empty for the model's own contract.", "")
    device: str = described("Where the artifact runs.", "cpu", enum=["cpu", "cuda"])
    torch: str = described("Version of torch that made it.", "")
    constants: dict[str, bool | int | float | str] = described(
        "Inputs of the model that are baked in: scalars as they are, all else as Python writes it.", dict
    )
    ops: tuple[str, ...] = described(
        "Namespaces of operators outside torch's own that the artifact calls, such as torchvision.", ()
    )
    precision: str = described(
        "What it computes in; fp32 is the model's own. Inputs and outputs are the model's in any.",
        FP32,
        enum=["fp32", "tf32", "bf16", "fp16", "int8"],
    )
    build: Build | None = described(
        "What the machine code in the artifact was built for; null where it holds none.", None
    )
    state: KeptState | None = described("What a call leaves for the next; null where it leaves nothing.", None)
    schema: int = described("Number of the contract's format.", CONTRACT_SCHEMAS[-1], enum=[1, 2])

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

    rtol: float = described("Relative, as in torch.allclose.", minimum=0)
    atol: float = described("Absolute, as in torch.allclose.", minimum=0)
    k: float = described("Bound on the RMSE, in units of eager's own.", minimum=0)
    min_cosine: float | None = described(
        "Cosine that passes too, as quantized; null where nothing but the above passes.", None, minimum=0, maximum=1
    )


@dataclass(frozen=True)
class CaseRecord:
    """One case of the golden.

    `sizes` are by symbol. `values` names what stands in the place of drawn values (`zeros`, `large`, ...). `sample`
    counts the recipe's own inputs from 0, and `step` the calls of a sequence where the model keeps state; else they are
    None.
    """

    name: str = described("What it is called: its sizes, and what its values are.")
    seed: int = described("The seed of the drawn values.", 0, minimum=0)
    sizes: dict[str, int] = described("Sizes by symbol.", dict, minimum=0)
    values: str = described(
        "What stands in the place of drawn values: `zeros`, `large`, ...; empty for drawn ones.", ""
    )
    sample: int | None = described("Which of the recipe's own samples it is, from 0; null for none.", None, minimum=0)
    step: int | None = described(
        "Which call of a sequence it is, from 0; null where the model keeps no state.", None, minimum=0
    )

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

    symbol: str = described("The symbol.")
    size: int = described("The size.", minimum=0)

    def __str__(self) -> str:
        """`batch is fixed at 2`."""
        return f"{self.symbol} is fixed at {self.size}"


@dataclass(frozen=True)
class SizeLimit:
    """What an exporter (`by`) made of a size that the contract lets move, and the model's line that is to blame.

    `of` is an expression of the `symbols`. It was `fixed` at the number `to`; or it is taken only in `steps`, of which
    `to` is the formula in n; or it is allowed only in the `range` that `to` is, and was checked beyond.
    """

    of: str = described("The size, as an expression of the symbols.")
    rule: Literal["fixed", "steps", "range"] = described(
        "Whether it was fixed at a number, is taken only in steps, or is allowed only in a range and was checked "
        "beyond."
    )
    to: str = described("The number, the formula of the steps in n, or the range.")
    symbols: tuple[str, ...] = described("The symbols that the size follows from.")
    place: str = described("The line of the model that is to blame, file:line; empty where it is not known.", "")
    by: str = described("The exporter.", "torch.export")

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

    message: str = described("What it said.")
    place: str = described("The source line that it named, file:line; empty where it named none.", "")
    unrecorded: bool = described(
        "Whether the line changes a tensor in a way that no trace and no graph records.", False
    )

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

    case: str = described("The golden's case.")
    seed: int = described("Its seed.")
    output: str = described("The output; empty where the case itself failed.")
    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine.")
    max_abs: float | None = described("Largest absolute difference from the reference.", None, minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", None, minimum=0)
    cosine: float | None = described("Cosine similarity with the reference.", None, minimum=-1.000001, maximum=1.000001)


@dataclass(frozen=True)
class Parity:
    """The worst over all outputs and cases, each number by itself; a session's has the parts too.

    `refused` are cases beside those compared: of sizes that the artifact does not promise, and its contract refuses.
    `unpropagated` says where NaN or infinity ends in the artifact and not in eager; None where that was not tried.
    """

    verdict: Verdict = described("The verdict; drift passes by the RMSE alone, quantized by the cosine.")
    max_abs: float | None = described("Largest absolute difference from the reference.", minimum=0)
    max_rel: float | None = described("Largest difference relative to the reference.", minimum=0)
    rmse_ratio: float | None = described("RMSE over eager's own RMSE, both against the reference.", minimum=0)
    cosine: float | None = described(
        "Smallest cosine similarity with the reference.", minimum=-1.000001, maximum=1.000001
    )
    worst: str = described("Output, index, case and seed of the worst element.")
    reason: str = described("Why it failed; empty when it passed.", "")
    cases: int = described("How many cases were compared.", 0, minimum=0)
    parts: tuple[CaseParity, ...] = described("Of a session: each output at each case. Empty elsewhere.", ())
    refused: int = described(
        "How many cases more are of sizes that the artifact does not promise, and were refused by its contract.",
        0,
        minimum=0,
    )
    unpropagated: tuple[str, ...] | None = described(
        "Where NaN or infinity ends in the artifact and not in eager, in words; null where that was not tried.", None
    )
    fixed: tuple[FixedSize, ...] = described("Sizes that the artifact was found to fix.", ())


@dataclass(frozen=True)
class ArtifactRecord:
    """A file of the bundle, by its path in it."""

    path: str = described("Its name in the bundle.")
    bytes: int = described("Its size.", minimum=0)
    sha256: str = described("Its SHA-256, in hexadecimal.", pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Lifecycle:
    """What a variant costs before it serves; all but `export_s` are of its Python session."""

    export_s: float | None = described("Seconds of the export.", None, minimum=0)
    load_s: float | None = described("Seconds to load the artifact.", None, minimum=0)
    first_call_ms: float | None = described("Milliseconds of the first call.", None, minimum=0)
    peak_rss_mb: float | None = described("Peak resident memory of the session, in MB of 10^6 bytes.", None, minimum=0)
    cached_call_ms: float | None = described(
        "Milliseconds of the first call of another process, which started from the cache; null for what leaves none.",
        None,
        minimum=0,
    )


@dataclass(frozen=True)
class SessionRecord:
    """One artifact in one language: what it took to load, and its parity there.

    `cached_call_ms` is the first call of another process, which started from what this one left in its cache; `gpu_mb`
    is by how much the GPU's memory in use grew while this session was opened and checked, with nothing else running.
    """

    session: str = described("Which: python or native.", enum=["python", "native"])
    status: Literal["passed", "failed"] = described("Whether it passed.")
    stage: str = described("How far it came: load, first call, check, time, done.", "")
    reason: str = described("Why it failed.", "")
    remedy: str = described("What to do about it.", "")
    cause: str = described("The name of a known cause of its failure; else empty.", "")
    provider: str = described("Who really ran it: onnxruntime's execution provider; empty for others.", "")
    load_s: float | None = described("Seconds to load the artifact.", None, minimum=0)
    first_call_ms: float | None = described("Milliseconds of the first call.", None, minimum=0)
    peak_rss_mb: float | None = described("Peak resident memory, in MB of 10^6 bytes.", None, minimum=0)
    parity: Parity | None = described("Its outputs against the golden; null when it gave none.", None)
    cached_call_ms: float | None = described(
        "Milliseconds of the first call of another process, which started from the cache; null for what leaves none.",
        None,
        minimum=0,
    )
    gpu_mb: float | None = described(
        "Memory that it took on the GPU, in MB of 10^6 bytes: by how much that in use grew while it was opened and "
        "checked. Null where nothing was timed, and on the CPU.",
        None,
        minimum=0,
    )


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

    cpus: int = described("CPUs that it might use.", minimum=0)
    others: float = described("Share of them that other processes took.", minimum=0, maximum=1)
    steal: float = described("Share that other guests of the host took.", minimum=0, maximum=1)
    throttled: float = described("Share of the time for which a quota stopped it.", minimum=0, maximum=1)
    hot: int = described("How often a core slowed down for heat.", minimum=0)
    load: float = described("The load average at its end.", minimum=0)

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

    median_ms: float = described("Median.", minimum=0)
    p90_ms: float | None = described("90th percentile; null where fewer than 10 samples lie beyond it.", minimum=0)
    p99_ms: float | None = described("99th percentile; null where fewer than 10 samples lie beyond it.", minimum=0)
    min_ms: float = described("Fastest call.", minimum=0)
    max_ms: float = described("Slowest call.", minimum=0)
    ci95_ms: tuple[float, float] = described("95% interval of the median: low, high.", minimum=0)
    runs: int = described("Timed calls.", minimum=1)
    stable: bool = described("Whether the interval of the ratio to eager came under 3% either way within the budget.")
    speedup: float | None = described("Eager's median over this one's.", None, minimum=0)
    speedup_ci95: tuple[float, float] | None = described("95% interval of the speedup: low, high.", None, minimum=0)
    outliers: int = described("Calls whose modified z-score is above 3.5.", 0, minimum=0)


@dataclass(frozen=True)
class VariantRecord:
    """One row's worth: a target with its settings. It is `pending` until its outputs have been checked."""

    name: str = described("NAME or NAME:VARIANT; eager for the baseline.")
    target: str = described("The target.")
    status: Literal["pending", "passed", "failed"] = described(
        "Whether it passed; pending, in the manifest of a run, until its outputs have been checked."
    )
    stage: str = described(
        "How far it came: export, load, first call, check, time, metric, done; hash for an artifact that was altered.",
        "",
    )
    reason: str = described("Why it failed; empty when it passed.", "")
    remedy: str = described("What to do about it.", "")
    cause: str = described("The name of a known cause of its failure; else empty.", "")
    reproduce: str = described("A command that runs this variant again.", "")
    log: str = described("Its log, relative to the bundle.", "")
    artifact: ArtifactRecord | None = described("The artifact; null for variants that leave none.", None)
    companions: tuple[ArtifactRecord, ...] = described(
        "Files beside the artifact that belong to it, such as an ONNX model's external weights; the cache of what is "
        "compiled just in time.",
        (),
    )
    contract: Contract | None = described("The contract that the artifact carries.", None)
    fixed: tuple[str, ...] = described("Dimensions that the artifact fixed: `batch is fixed at 2`.", ())
    notes: tuple[str, ...] = described("What the target has to say.", ())
    warnings: tuple[Warned, ...] = described("Warnings of the export, with source lines.", ())
    limits: tuple[SizeLimit, ...] = described("What exporters made of sizes that the contract lets move.", ())
    untimed: str = described("Why its sessions were not timed where others were; else empty.", "")
    parity: Parity | None = described("The worst of its sessions; null when none was judged.", None)
    lifecycle: Lifecycle = described("What it costs before it serves.", Lifecycle)
    sessions: tuple[SessionRecord, ...] = described("One for each language that ran it.", ())
    timings: dict[str, Timing] = described("Latency by session.", dict, propertyNames={"enum": ["python", "native"]})
    sweep: dict[str, dict[str, Timing]] = described(
        "Latency at the other points of the sweep, by point, then by session.",
        dict,
        propertyNames={"enum": ["python", "native"]},
    )
    metric: float | None = described(
        "The recipe's metric of its Python session; null where the recipe has none, or it could not be computed.", None
    )
    rejected: tuple[ArtifactRecord, ...] = described(
        "Its files where it was judged and failed, as rejected/trace.pt; artifact is null then, and companions is "
        "empty.",
        (),
    )

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

    name: str = described("Its name.")
    source: str = described("What the user wrote, or where the recipe lies.")
    weights: str = described("Which weights were loaded, in the recipe's words.")
    seed: int = described("Seed of random weights.")
    parameters: int = described("Number of parameters.", 0, minimum=0)
    sizes: dict[str, int] = described("Sizes of the example that is timed.", dict, minimum=1)
    origin: str = described(
        "Where pretrained weights were published, a package URL or another; empty where nobody says.", ""
    )
    licence: str = described(
        "The licence of pretrained weights, as their publisher names it; empty where nobody says.", ""
    )


@dataclass(frozen=True)
class GoldenRecord:
    """The golden: its file, its cases, and the noise of eager itself against the reference.

    `unsteady` is why eager gives other values at a second run; "" where it is repeatable.
    """

    file: ArtifactRecord = described("Its file.")
    cases: tuple[CaseRecord, ...] = described("Its cases.")
    reference: str = described(
        "Precision of the reference; eager when the model does not run in float64.", enum=["float64", "eager"]
    )
    tolerance: Tolerance = described("When outputs in fp32 count as equal.")
    eager_rmse: float | None = described(
        "RMSE of eager against the reference; null without floating outputs.", minimum=0
    )
    repeatable: bool = described("Whether eager gave the same values twice.")
    tolerances: dict[str, Tolerance] = described("Those of other precisions than fp32, by their names.", dict)
    unsteady: str = described("Why eager gives other values at a second run; empty where it is repeatable.", "")


@dataclass(frozen=True)
class MetricRecord:
    """The recipe's metric, higher is better: the mean over its samples of eager's outputs, and the bounds asked for."""

    eager: float = described("Of eager's outputs.")
    samples: int = described("How many samples there are.", minimum=1)
    least: float | None = described("What a variant's has to be at least; null where nothing was asked for.", None)
    most_loss: float | None = described(
        "How much less than eager's it may be; null where nothing was asked for.", None, minimum=0
    )


@dataclass(frozen=True)
class Goal:
    """What the recommendation looks for, and the bounds that it keeps: p99 latency, size of all files, worst cosine."""

    name: Literal["latency", "throughput", "size", "portability"] = option(
        "latency",
        "What to recommend: latency, the fastest artifact at the example's sizes; throughput, the one that processes "
        "the most samples a second at any of the timed sizes; size, the smallest; portability, the one that moves most "
        "freely between machines.",
        flag="--goal",
    )
    max_p99_ms: float | None = option(
        None, "Recommend only artifacts whose 99th percentile is at most this.", metavar="MS", minimum=0
    )
    max_mb: float | None = option(None, "Recommend only artifacts of at most this size.", metavar="MB", minimum=0)
    min_cosine: float | None = option(
        None,
        "Recommend only artifacts whose cosine similarity to the float64 reference is at least this.",
        minimum=0,
        maximum=1,
    )
    needs: Literal["", "cpp"] = option("", "Recommend only artifacts that run in C++.")


@dataclass(frozen=True, kw_only=True)
class RequestRecord(RunSettings, SizeSettings, SourceSettings):
    """What was asked for, so that it can be asked for again. Files are named by absolute paths.

    `model` is as the user wrote it, relative to the folder of that run; "" for a module in memory.
    """

    model: str = described("The model, as the user named it; empty for a module in memory.")
    targets: tuple[str, ...] = described("The variants, as NAME, NAME:VARIANT or NAME@PRECISION.")
    device: str = described("Where it runs: cpu, cuda or cuda:N.")


@dataclass(frozen=True)
class Manifest:
    """The one record of a run, from which alone every report is rendered. Unknown numbers are null.

    Speed-ups are over the row `baseline`. `points` are what was timed: sizes by the name of their golden case.
    """

    model: ModelRecord = described("The model.")
    device: str = described("Where it ran: cpu, cuda or cuda:N.", pattern="^(cpu|cuda(:[0-9]+)?)$")
    threads: int = described("Threads of one call on the CPU.", minimum=1)
    command: str = described("The command of the run.")
    created: str = described("When the run began: ISO 8601, UTC.", format="date-time")
    exporter: str = described("Version of exporter.")
    status: Literal["running", "complete", "failed", "interrupted"] = described(
        "How far the run came. In a failed one the model itself did not run; an interrupted one keeps what was "
        "finished.",
        "running",
    )
    environment: dict[str, str] = described("Facts of the machine, and versions of distributions by name.", dict)
    contract: Contract | None = described(
        "What the model takes and gives; null when the run ended before it was known.", None
    )
    golden: GoldenRecord | None = described(
        "What the artifacts were checked against; null when the run ended before it was made.", None
    )
    variants: tuple[VariantRecord, ...] = described(
        "One for each variant, in the order asked for; eager first when latency was measured.", ()
    )
    warnings: tuple[str, ...] = described("What the user should know of the run as a whole.", ())
    untimed: dict[str, str] = described(
        "Points of the sweep at which the baseline failed and nothing was timed, and why.", dict
    )
    samples: ArtifactRecord | None = described(
        "samples.json: latency samples in ms, by variant, session and point of a sweep, in windows, of each at most "
        "1000; null when nothing was timed.",
        None,
    )
    goal: Goal = described("What the recommendation looks for.", Goal)
    points: dict[str, dict[str, int]] = described(
        "What a sweep timed: the sizes that it names, by the golden case that has them; the example first. Empty "
        "where there was none.",
        dict,
        minimum=0,
    )
    baseline: str = described(
        "The row that speed-ups are over: eager, or for a bundle that is timed again its first artifact.", EAGER
    )
    metric: MetricRecord | None = described(
        "The recipe's metric of eager, and its bounds; null where the recipe has none.", None
    )
    machine: MachineLoad | None = described(
        "What went on beside the measurement; null where nothing was timed, or nobody says.", None
    )
    request: RequestRecord | None = described("What was asked for; null in bundles made before it was recorded.", None)
    schema: int = described("Number of this format. A reader refuses one that it does not know.", SCHEMA, enum=[1])

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
