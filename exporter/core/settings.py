"""The settings of a run, grouped in records.

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
        """Raise UsageError for the first setting with an invalid value."""
        for setting in settings(self):
            setting.check(getattr(self, setting.name))


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """The model's weights, inputs and outputs; its name is elsewhere."""

    checkpoint: str = option(
        "",
        "Load your own weights: .safetensors, .pt, .pth, .bin, .ckpt, or the .index.json of a sharded checkpoint.",
        metavar="FILE",
        file=True,
    )
    allow_partial: bool = option(False, "Load the tensors of the checkpoint that fit, and warn about the rest.")
    inputs_file: str = option(
        "",
        "Tensors by name (.safetensors, or a dict from torch.save) to use instead of the recipe's inputs. All sizes "
        "are then fixed, except those of --dim. For a saved program the file is the example, and what the program "
        "leaves dynamic stays dynamic.",
        flag="--inputs",
        key="inputs",
        metavar="FILE",
        file=True,
    )
    dims: tuple[str, ...] = option(
        (),
        "Name a dimension of a saved program or of --inputs, such as batch=state:1 or samples=x:1:256..16000. It "
        "becomes dynamic and varies together with all others of that name; may be repeated.",
        flag="--dim",
        metavar="NAME=INPUT:AXIS[:MIN..MAX]",
    )
    leave_out: tuple[str, ...] = option(
        (),
        "Drop this output and everything in it, such as past_key_values, from every artifact; may be repeated.",
        metavar="OUTPUT",
    )
    task: str = option("", "For hf:ID: the task that selects the model class, such as fill-mask.", metavar="TASK")

    def require_consistent(self, weights: str = "auto") -> None:
        """Raise UsageError for settings that contradict each other."""
        if self.allow_partial and not self.checkpoint:
            remedy = "remove allow_partial (--allow-partial), or give a checkpoint"
            raise UsageError("allow_partial has no effect without a checkpoint", remedy)
        if self.checkpoint and weights == "pretrained":
            cause = "weights = pretrained and a checkpoint are two sources of weights"
            raise UsageError(cause, "give one of --weights pretrained and --checkpoint")


@dataclass(frozen=True, kw_only=True)
class SizeSettings(Settings):
    """Sizes by symbol: the example's, those to time (the example's first), and the ranges that artifacts promise."""

    sizes: dict[str, int] = described("Sizes of the example.", dict, minimum=1)
    sweep: dict[str, tuple[int, ...]] = described("Sizes that are timed, the example's first.", dict, minimum=1)
    ranges: dict[str, Range] = described("What the artifacts promise.", dict)

    def require_sizes(self) -> None:
        """Raise UsageError for a sweep without a size."""
        if empty := [size for size, values in self.sweep.items() if not values]:
            raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The kind of weights, the dynamic sizes, and who keeps the state."""

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
    weights: str = option("auto", "auto: pretrained if available, else random.", choices=WEIGHTS)
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
    opset: int | None = option(None, "ONNX opset; by default torch's own.", minimum=18)
    fullgraph: bool = option(
        False, "Fail a variant compiled just in time (torch.compile) if it has a graph break.", key=None
    )
    portable: bool = option(
        False,
        "Compile packages for any x86-64-v3 CPU (AVX2) instead of this CPU. GPU code is always compiled for this type "
        "of GPU.",
        flag="--portable/--native",
    )


@dataclass(frozen=True, kw_only=True)
class ParitySettings(Settings):
    """How outputs are judged."""

    rtol: float | None = option(
        None, "Relative tolerance for parity; by default it depends on the precision.", minimum=0
    )
    atol: float | None = option(
        None, "Absolute tolerance for parity; by default it depends on the precision.", minimum=0
    )
    min_metric: float | None = option(
        None, "Fail a variant whose metric (the recipe's metric(outputs, sample)) is lower than this.", key=None
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
        "Average time of the timed calls for each variant and session; each is called at least 5 times.",
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
    """All settings of a run, except for the model, sizes, variants, device and directory."""

    replace: bool = option(
        False,
        "Replace a bundle even if that loses a variant that passes in it, because it failed in this run or was not "
        "requested. By default such a run is kept beside the bundle, in NAME.failed.",
        key=None,
        effect=False,
    )
