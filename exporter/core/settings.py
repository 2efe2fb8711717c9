"""What may be asked of a run, in records of what belongs together.

Everything that takes settings is composed of them: the request of an export, its record in the manifest, what goes to
child processes, the recheck of a bundle.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.core import environment
from exporter.core.errors import UsageError
from exporter.core.json_schema import described
from exporter.core.limits import MAX_THREADS
from exporter.core.option import option, settings
from exporter.core.size_range import Range

WEIGHTS = ("auto", "pretrained", "random")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A record of settings."""

    def require_valid(self) -> None:
        """UsageError for the first setting that has a value which it does not take."""
        for setting in settings(self):
            setting.check(getattr(self, setting.name))


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """Which model it is, beside its name: its weights, its inputs and its outputs."""

    checkpoint: str = option(
        "",
        "Weights of your own: .safetensors, .pt, .pth, .bin, .ckpt, or the .index.json of one in several files.",
        metavar="FILE",
        file=True,
    )
    allow_partial: bool = option(False, "Load the tensors of the checkpoint that fit, and warn about the rest.")
    inputs_file: str = option(
        "",
        "Tensors by name (.safetensors, or a dict from torch.save), used instead of the recipe's inputs: every size is "
        "then fixed except those of --dim. For a saved program it is the example: what the program leaves dynamic "
        "stays dynamic.",
        flag="--inputs",
        key="inputs",
        metavar="FILE",
        file=True,
    )
    dims: tuple[str, ...] = option(
        (),
        "Name a dimension of a saved program or of --inputs, as batch=state:1 or samples=x:1:256..16000. It becomes "
        "dynamic and varies together with all others of that name; may be repeated.",
        flag="--dim",
        metavar="NAME=INPUT:AXIS[:MIN..MAX]",
    )
    leave_out: tuple[str, ...] = option(
        (),
        "Drop an output, and everything in it, from every artifact, as past_key_values; may be repeated.",
        metavar="OUTPUT",
    )
    task: str = option("", "For hf:ID: the task that selects the model class, as fill-mask.", metavar="TASK")

    def require_consistent(self, weights: str = "auto") -> None:
        """UsageError for settings that contradict each other."""
        if self.allow_partial and not self.checkpoint:
            remedy = "leave out allow_partial (--allow-partial), or give a checkpoint"
            raise UsageError("allow_partial has no effect without a checkpoint", remedy)
        if self.checkpoint and weights == "pretrained":
            cause = "weights = pretrained and a checkpoint are two sources of weights"
            raise UsageError(cause, "give one of --weights pretrained and --checkpoint")


@dataclass(frozen=True, kw_only=True)
class SizeSettings(Settings):
    """Sizes by symbol: those of the example, those that are timed (the example's first), and what artifacts promise."""

    sizes: dict[str, int] = described("Sizes of the example.", dict, minimum=1)
    sweep: dict[str, tuple[int, ...]] = described("Sizes that are timed, the example's first.", dict, minimum=1)
    ranges: dict[str, Range] = described("What the artifacts promise.", dict)

    def require_sizes(self) -> None:
        """UsageError for a sweep without a size."""
        if empty := [size for size, values in self.sweep.items() if not values]:
            raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """With which weights the model is exported, which of its sizes stay dynamic, and where its state is kept."""

    dynamic: str = option(
        "all",
        "Which sizes stay dynamic; the others are fixed at the example's.",
        metavar="all|batch|none|NAME,...",
    )
    state: str = option(
        "carry",
        "Who keeps the state that one call leaves for the next. carry: the artifact keeps it. inputs: the caller "
        "passes it as inputs named state.NAME and receives it among the outputs.",
        choices=("carry", "inputs"),
    )
    weights: str = option("auto", "auto: pretrained where they are available.", choices=WEIGHTS)
    seed: int = option(0, "Seed of random weights.")


@dataclass(frozen=True, kw_only=True)
class SessionSettings(Settings):
    """How an artifact is loaded and called."""

    threads: int = option(
        environment.usable_cpus, "Threads of one call on the CPU; all cores by default.", minimum=1, maximum=MAX_THREADS
    )
    timeout: float = option(
        1800.0,
        "Limit for one export or one answer of a session, in seconds.",
        metavar="SECONDS",
        minimum=1,
        effect=False,
    )
    ops_libs: tuple[str, ...] = option(
        (),
        "Library that registers your own operators (TORCH_LIBRARY), loaded before the model; may be repeated.",
        flag="--ops-lib",
        metavar="FILE",
        file=True,
        effect=False,  # its content has, which release keys read
    )
    allow_cpu_fallback: bool = option(False, "Let onnxruntime run on the CPU where CUDA was requested.")
    cuda_graphs: bool = option(
        False,
        "Let onnxruntime capture CUDA graphs. A model that cannot be captured fails. exporter-run always captures.",
    )


@dataclass(frozen=True, kw_only=True)
class BuildSettings(Settings):
    """How artifacts are built."""

    memory_limit_gb: float | None = option(
        None,
        "Private memory that one export or Python session may use, in GB (10^9 bytes); unlimited by default.",
        flag="--memory-limit",
        metavar="GB",
        minimum=0.1,
        effect=False,
    )
    opset: int | None = option(None, "ONNX opset; torch's default otherwise.", minimum=18)
    fullgraph: bool = option(
        False, "Fail a variant that torch.compile compiles just in time if it has a graph break.", key=None
    )
    portable: bool = option(
        False,
        "Compile packages for any x86-64-v3 CPU (AVX2) instead of for this one. GPU code is always for this kind of "
        "GPU.",
        flag="--portable/--native",
    )


@dataclass(frozen=True, kw_only=True)
class ParitySettings(Settings):
    """What an artifact's outputs are held against."""

    rtol: float | None = option(None, "Relative tolerance of parity; by precision otherwise.", minimum=0)
    atol: float | None = option(None, "Absolute tolerance of parity; by precision otherwise.", minimum=0)
    min_metric: float | None = option(
        None, "Fail a variant whose metric, from the recipe's metric(outputs, sample), is lower.", key=None
    )
    max_metric_loss: float | None = option(
        None, "Fail a variant whose metric is lower than eager's by more than this.", minimum=0, key=None
    )


@dataclass(frozen=True, kw_only=True)
class TimingSettings(Settings):
    """Whether and how latency is measured."""

    bench: bool = option(True, "Whether latency is measured.", flag="--bench/--no-bench")
    time_budget: float = option(
        5.0,
        "Seconds of timed calls for each variant and session, on average; each is called at least 5 times.",
        metavar="SECONDS",
        minimum=0.1,
    )
    wait_quiet: float = option(
        0.0,
        "Before timing, wait up to this many seconds until no other process is busy on this machine.",
        metavar="SECONDS",
        minimum=0,
        effect=False,
    )


@dataclass(frozen=True, kw_only=True)
class RunSettings(TimingSettings, ParitySettings, BuildSettings, SessionSettings, ModelSettings):
    """All that may be asked of a run, beside its model, its sizes, its variants, its device and its folder."""

    replace: bool = option(
        False,
        "Replace a bundle even where a variant that passes in it would be lost: because it failed in this run, or was "
        "not requested. Without it such a run is kept beside that bundle, in NAME.failed.",
        key=None,
        effect=False,
    )
