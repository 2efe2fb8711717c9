"""The manifest's records: frozen dataclasses, which `json_codec` writes as JSON and reads.

Numbers that could not be had are None. Times end in `_s` (seconds) or `_ms` (milliseconds), memory in `_mb` (10^6
bytes). `manifest.schema.json` beside this file describes the same for other tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.core.contract_records import Contract
from exporter.core.json_schema import described
from exporter.core.option import option
from exporter.core.parity_records import CaseRecord, Parity, SizeLimit, Tolerance, Warned
from exporter.core.settings import RunSettings, SizeSettings, SourceSettings
from exporter.core.timing_records import MachineLoad, Timing

SCHEMA = 1  # of the manifest, and of whatever has no number of its own

EAGER = "eager"  # the baseline's name, and its target's


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
