"""The settings of a run, grouped into records.

Everything that takes settings is composed of these records: the request of an export, its record in the manifest, the
settings sent to child processes, and the recheck of a bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.core import environment
from exporter.core.errors import UsageError
from exporter.core.json_schema import described
from exporter.core.limits import MAX_THREADS, SEEDS
from exporter.core.option import option, settings
from exporter.core.size_range import Range

WEIGHTS = ("auto", "pretrained", "random")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A record of settings."""

    def require_valid(self) -> None:
        """Raise UsageError for the first setting whose value is not allowed."""
        for setting in settings(self):
            setting.check(getattr(self, setting.name))


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """The model's checkpoint, inputs, outputs and task: whatever identifies it besides its name."""

    checkpoint: str = option(
        "",
        "Load weights from FILE: .safetensors, .pt, .pth, .bin, .ckpt, or the .index.json of a sharded checkpoint.",
        metavar="FILE",
        file=True,
    )
    allow_partial: bool = option(False, "Load only the checkpoint tensors that fit the model, and warn about the rest.")
    inputs_file: str = option(
        "",
        "Use the named tensors in FILE (.safetensors, or a dict from torch.save) instead of the recipe's inputs. Every "
        "size is then fixed except those named with --dim. For a saved program they are the example, and its dynamic "
        "sizes stay dynamic.",
        flag="--inputs",
        key="inputs",
        metavar="FILE",
        file=True,
    )
    dims: tuple[str, ...] = option(
        (),
        "Name a dimension of a saved program or of --inputs, for example batch=state:1 or samples=x:1:256..16000, and "
        "make it dynamic. Dimensions with the same name vary together. May be repeated.",
        flag="--dim",
        metavar="NAME=INPUT:AXIS[:MIN..MAX]",
    )
    leave_out: tuple[str, ...] = option(
        (),
        "Drop an output and everything nested in it from every artifact, for example past_key_values. May be repeated.",
        metavar="OUTPUT",
    )
    task: str = option("", "For hf:ID models: task that selects the model class, such as fill-mask.", metavar="TASK")

    def require_consistent(self, weights: str = "auto") -> None:
        """Raise UsageError if settings contradict each other."""
        if self.allow_partial and not self.checkpoint:
            remedy = "remove allow_partial (--allow-partial), or give a checkpoint"
            raise UsageError("allow_partial has no effect without a checkpoint", remedy)
        if self.checkpoint and weights == "pretrained":
            cause = "weights = pretrained and a checkpoint are two sources of weights"
            raise UsageError(cause, "give one of --weights pretrained and --checkpoint")


@dataclass(frozen=True, kw_only=True)
class SizeSettings(Settings):
    """Sizes by symbol: the example's, the timed ones (the example's first), and the ranges that artifacts support."""

    sizes: dict[str, int] = described("Sizes of the example.", dict, minimum=1)
    sweep: dict[str, tuple[int, ...]] = described("Sizes to time, the example's first.", dict, minimum=1)
    ranges: dict[str, Range] = described("Ranges of sizes that the artifacts must support.", dict)

    def require_sizes(self) -> None:
        """Raise UsageError if the sweep of a symbol has no sizes."""
        if empty := [size for size, values in self.sweep.items() if not values]:
            raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The exported weights, the dynamic sizes, and where state is kept."""

    dynamic: str = option(
        "all",
        "Sizes that stay dynamic; the others are fixed at the example's.",
        metavar="all|batch|none|NAME,...",
    )
    state: str = option(
        "carry",
        "Where state is kept between calls. carry: inside the artifact. inputs: the caller passes it as inputs named "
        "state.NAME and receives it among the outputs.",
        choices=("carry", "inputs"),
    )
    weights: str = option("auto", "Weights to export. auto: pretrained if available, else random.", choices=WEIGHTS)
    seed: int = option(0, "Seed for random weights.", minimum=SEEDS[0], maximum=SEEDS[1])


@dataclass(frozen=True, kw_only=True)
class SessionSettings(Settings):
    """How an artifact is loaded and called."""

    threads: int = option(
        environment.usable_cpus, "CPU threads of one call; all cores by default.", minimum=1, maximum=MAX_THREADS
    )
    timeout: float = option(
        1800.0,
        "Time limit for one export or one response of a session, in seconds.",
        metavar="SECONDS",
        minimum=1,
        maximum=2_000_000,  # the system waits for at most 2^31 ms
        effect=False,
    )
    ops_libs: tuple[str, ...] = option(
        (),
        "Library that registers custom operators (TORCH_LIBRARY), loaded before the model. May be repeated.",
        flag="--ops-lib",
        metavar="FILE",
        file=True,
        effect=False,  # the path has none; release keys include the content instead
    )
    allow_cpu_fallback: bool = option(False, "Let onnxruntime fall back to the CPU when CUDA was requested.")
    cuda_graphs: bool = option(
        False,
        "Let onnxruntime capture CUDA graphs. A model that cannot be captured fails. exporter-run always captures.",
    )


@dataclass(frozen=True, kw_only=True)
class BuildSettings(Settings):
    """How artifacts are built."""

    memory_limit_gb: float | None = option(
        None,
        "Limit on the private memory of one export or Python session, in GB (10^9 bytes); unlimited by default.",
        flag="--memory-limit",
        metavar="GB",
        minimum=0.1,
        maximum=1_000_000,
        effect=False,
    )
    opset: int | None = option(None, "ONNX opset version; torch's default if not given.", minimum=18)
    fullgraph: bool = option(
        False, "Fail a variant compiled just in time by torch.compile if it has a graph break.", key=None
    )
    keep_float: tuple[str, ...] = option(
        (),
        "Leave a layer in floating point in int8 variants, and in float32 in bf16, fp16, int8w and fp16w variants, by "
        "its name in the model (encoder.layer.0.output), which includes the layers inside it. May be repeated. "
        "`exporter bisect --fix` finds the layers.",
        metavar="LAYER",
    )
    inductor: tuple[str, ...] = option(
        (),
        "Change a setting of torch._inductor.config for variants of the compile target, such as freezing=False or "
        "cpp.simdlen=1. May be repeated. `exporter bisect --fix` finds one with which a failing variant passes.",
        metavar="NAME=VALUE",
    )
    fallback: tuple[str, ...] = option(
        (),
        "Call torch's own kernel for an operator in packages of the compile target, instead of code that inductor "
        "generates, by its name, such as aten.silu. May be repeated. `exporter bisect --fix` finds one.",
        metavar="OPERATOR",
    )
    entries: tuple[str, ...] = option(
        (),
        "Compile further models for these sizes alone into packages of the compile target, with the weights stored "
        "once, for example batch=1,8. A call at these sizes runs the model for them, every other call the one for all "
        "sizes. Given for several sizes, each combination has a model. May be repeated.",
        metavar="SIZE=N,...",
    )
    graph_optimization: str = option(
        "all",
        "Level of onnxruntime's graph optimizations with which exporter loads an ONNX model. The model's metadata "
        "records it; other programs have to set it. For fp16 on a CPU, all means extended, because onnxruntime can "
        "crash otherwise.",
        choices=("all", "extended", "basic", "none"),
    )
    reuse: bool = option(
        True,
        "Take an artifact that was built before from exactly the same exported program, settings and software from a "
        "cache beside inductor's. It is checked like a new one. EXPORTER_CACHE_GB limits the cache (5 by default).",
        flag="--reuse/--no-reuse",
        effect=False,
    )
    session_options: tuple[str, ...] = option(
        (),
        "Change how onnxruntime runs an ONNX model: execution_mode=parallel, enable_mem_pattern=False or an entry such "
        "as session.intra_op.allow_spinning=0. The model's metadata records it. May be repeated.",
        flag="--session-option",
        metavar="NAME=VALUE",
    )
    channels_last: bool = option(
        False,
        "Trace the model with images and the weights of convolutions in the channels-last layout. Callers pass images "
        "in any layout.",
    )
    portable: bool = option(
        False,
        "Compile packages, and quantize ONNX models to int8, for any x86-64-v3 CPU (AVX2) instead of this machine's "
        "CPU. GPU code always targets this machine's kind of GPU.",
        flag="--portable/--native",
    )


@dataclass(frozen=True, kw_only=True)
class ParitySettings(Settings):
    """The tolerances and metric bounds that an artifact must meet."""

    rtol: float | None = option(None, "Relative tolerance of parity; depends on the precision by default.", minimum=0)
    atol: float | None = option(None, "Absolute tolerance of parity; depends on the precision by default.", minimum=0)
    min_metric: float | None = option(
        None, "Fail a variant whose metric, from the recipe's metric(outputs, sample), is below this.", key=None
    )
    max_metric_loss: float | None = option(
        None, "Fail a variant whose metric is below eager's by more than this.", minimum=0, key=None
    )


@dataclass(frozen=True, kw_only=True)
class TimingSettings(Settings):
    """Whether and how latency is measured."""

    bench: bool = option(True, "Measure latency.", flag="--bench/--no-bench")
    time_budget: float = option(
        5.0,
        "Average seconds of timed calls per variant and session; each is called at least 5 times.",
        metavar="SECONDS",
        minimum=0.1,
    )
    wait_quiet: float = option(
        0.0,
        "Before timing, wait up to this many seconds for other processes on this machine to become idle.",
        metavar="SECONDS",
        minimum=0,
        effect=False,
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(TimingSettings, ParitySettings, BuildSettings, SessionSettings, ModelSettings):
    """Every setting of a run except its model, sizes, variants, device and folder."""

    tune: float = option(
        0.0,
        "Look for faster ways to build and load each variant: choices are built, checked and timed one after another, "
        "and none is begun after this many seconds for that variant. A build is stopped then, but what has been built "
        "is still checked and timed, so that a single choice may take longer. A choice is kept only if it is faster "
        "beyond doubt and loses no parity. By default nothing is tried.",
        metavar="SECONDS",
        minimum=0,
    )
    replace: bool = option(
        False,
        "Replace the existing bundle even if that loses a passing variant because it failed in this run or was not "
        "requested. Without this option such a run is kept beside the bundle, in NAME.failed.",
        key=None,
        effect=False,
    )
