"""The manifest's records: frozen dataclasses, which `json_codec` writes as JSON and reads.

Numbers that are unknown are None. Names of times end in `_s` (seconds) or `_ms` (milliseconds), names of memory in
`_mb` (10^6 bytes). `manifest.schema.json` beside this file describes the same records for other tools.

This file is long because it holds the whole manifest, from which the schema's descriptions are generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.core import precisions
from exporter.core.contract_records import Contract
from exporter.core.json_schema import described
from exporter.core.option import option
from exporter.core.parity_records import CaseRecord, Parity, SizeLimit, Tolerance, Warned
from exporter.core.settings import RunSettings, SizeSettings, SourceSettings
from exporter.core.timing_records import MachineLoad, Timing, runs_for
from exporter.core.tuning_records import Tried

SCHEMA = 1  # of the manifest, and of every format without its own number

EAGER = "eager"  # name of the baseline and of its target
UNCHECKED = "not checked"  # stage of a variant if the run ended before its outputs were compared


@dataclass(frozen=True)
class ArtifactRecord:
    """A file of the bundle."""

    path: str = described("Path of the file in the bundle.")
    bytes: int = described("Size of the file, in bytes.", minimum=0)
    sha256: str = described("SHA-256 of the file, in hexadecimal.", pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Lifecycle:
    """What a variant costs before it serves. Every field except `export_s` is measured in its Python session."""

    export_s: float | None = described("Seconds of the export.", None, minimum=0)
    load_s: float | None = described("Seconds to load the artifact.", None, minimum=0)
    first_call_ms: float | None = described("Milliseconds of the first call.", None, minimum=0)
    peak_rss_mb: float | None = described("Peak resident memory of the session, in MB of 10^6 bytes.", None, minimum=0)
    cached_call_ms: float | None = described(
        "Milliseconds of the first call of another process that started from the cache; null if there is no cache.",
        None,
        minimum=0,
    )


@dataclass(frozen=True)
class SessionRecord:
    """One artifact in one language: the cost of loading it, and its parity.

    `cached_call_ms` is the first call of another process that started from the cache this one left. `gpu_mb` is the
    growth of the GPU's memory in use while this session was opened and checked, with nothing else running.
    """

    session: str = described("Language of the session: python or native.", enum=["python", "native"])
    status: Literal["passed", "failed"] = described("Whether it passed.")
    stage: str = described("Last stage reached: load, first call, check, time, done.", "")
    reason: str = described("Why it failed; empty if it passed.", "")
    remedy: str = described("What to do about it.", "")
    cause: str = described("Name of the known cause of its failure; empty if there is none.", "")
    provider: str = described("Execution provider that onnxruntime actually used; empty for other runtimes.", "")
    load_s: float | None = described("Seconds to load the artifact.", None, minimum=0)
    first_call_ms: float | None = described("Milliseconds of the first call.", None, minimum=0)
    peak_rss_mb: float | None = described("Peak resident memory, in MB of 10^6 bytes.", None, minimum=0)
    parity: Parity | None = described("Comparison of its outputs with the golden; null if it returned none.", None)
    cached_call_ms: float | None = described(
        "Milliseconds of the first call of another process that started from the cache; null if there is no cache.",
        None,
        minimum=0,
    )
    gpu_mb: float | None = described(
        "GPU memory that it took, in MB of 10^6 bytes: how much the memory in use grew while it was open. "
        "Null on the CPU and if nothing was timed.",
        None,
        minimum=0,
    )


@dataclass(frozen=True)
class VariantRecord:
    """One row of the report: a target with its settings. It is `pending` until its outputs have been checked."""

    name: str = described("NAME or NAME:VARIANT; eager for the baseline.")
    target: str = described("The target.")
    status: Literal["pending", "passed", "failed"] = described(
        "Whether it passed; pending, in the manifest of a run, until its outputs have been checked."
    )
    stage: str = described(
        "Last stage reached: export, load, first call, check, time, metric, done; hash if the artifact was altered, "
        "`not checked` if the run ended before.",
        "",
    )
    reason: str = described("Why it failed; empty when it passed.", "")
    remedy: str = described("What to do about it.", "")
    cause: str = described("Name of the known cause of its failure; empty if there is none.", "")
    reproduce: str = described("A command that runs this variant again.", "")
    log: str = described("Its log, relative to the bundle.", "")
    artifact: ArtifactRecord | None = described("The artifact; null for variants that have none.", None)
    companions: tuple[ArtifactRecord, ...] = described(
        "Files that belong to the artifact, such as an ONNX model's external weights or the cache of just-in-time "
        "compilation.",
        (),
    )
    contract: Contract | None = described("The contract that the artifact carries.", None)
    fixed: tuple[str, ...] = described("Dimensions that the artifact fixed: `batch is fixed at 2`.", ())
    notes: tuple[str, ...] = described("Remarks of the target.", ())
    warnings: tuple[Warned, ...] = described("Warnings of the export, with source lines.", ())
    limits: tuple[SizeLimit, ...] = described(
        "Limits that exporters put on sizes that are dynamic in the contract.", ()
    )
    untimed: str = described("Why its sessions were not timed although others were; empty otherwise.", "")
    parity: Parity | None = described("Worst parity of its sessions; null if none was compared.", None)
    lifecycle: Lifecycle = described("What it costs before it serves.", Lifecycle)
    sessions: tuple[SessionRecord, ...] = described("One for each language that ran it.", ())
    timings: dict[str, Timing] = described("Latency by session.", dict, propertyNames={"enum": ["python", "native"]})
    sweep: dict[str, dict[str, Timing]] = described(
        "Latency at the other points of the sweep, by point, then by session.",
        dict,
        propertyNames={"enum": ["python", "native"]},
    )
    metric: float | None = described(
        "The recipe's metric for its Python session; null if the recipe has none or computing it failed.", None
    )
    rejected: tuple[ArtifactRecord, ...] = described(
        "Its files if it was compared and failed, such as rejected/trace.pt; artifact is then null and companions is "
        "empty.",
        (),
    )
    tuning: tuple[Tried, ...] = described("What --tune tried, in that order.", ())

    @property
    def failure(self) -> str:
        """Where it failed, in words that follow its name."""
        return f"was {UNCHECKED}" if self.stage == UNCHECKED else f"failed at {self.stage}"

    @property
    def quantized(self) -> bool:
        """Whether it computes in integers."""
        return self.contract is not None and precisions.base(self.contract.precision) == "int8"

    @property
    def files(self) -> tuple[ArtifactRecord, ...]:
        """The artifact and the files that belong to it."""
        return (*((self.artifact,) if self.artifact else ()), *self.companions)


@dataclass(frozen=True)
class ModelRecord:
    """The model and its weights.

    `origin` is where pretrained weights were published, as a package URL or another URL; `licence` is their licence.
    Either is empty if unknown.
    """

    name: str = described("Its name.")
    source: str = described("Model as the user named it, or the location of the recipe.")
    weights: str = described("Which weights were loaded, in the recipe's words.")
    seed: int = described("Seed for random weights.")
    parameters: int = described("Number of parameters.", 0, minimum=0)
    sizes: dict[str, int] = described("Sizes of the example that is timed.", dict, minimum=1)
    origin: str = described(
        "Where pretrained weights were published, as a package URL or another URL; empty if unknown.", ""
    )
    licence: str = described("Licence of the pretrained weights, as their publisher names it; empty if unknown.", "")


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
    tolerances: dict[str, Tolerance] = described(
        "Those of outputs in other dtypes than the highest, and of other precisions than fp32, by their names.", dict
    )
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

    @property
    def least_runs(self) -> int:
        """Return how many timed calls of each artifact the bounds need."""
        return 0 if self.max_p99_ms is None else runs_for(99)


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
