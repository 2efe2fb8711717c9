"""Turn the release file into steps, without running any."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from exporter import targets
from exporter.bundle import layout
from exporter.core import probing, source_lines
from exporter.core.contract_records import FP32
from exporter.core.errors import UsageError
from exporter.core.option import option, settings
from exporter.core.records import EAGER
from exporter.core.settings import RunSettings, SourceSettings
from exporter.core.size_range import Range
from exporter.core.timing_records import runs_for
from exporter.model import recipes, written_sizes
from exporter.release.file import Place, ReleaseFile, ReleaseFileError
from exporter.runs.request import Request

TARGETS = ("trace", "script", "compile", "onnx")
OUT = "artifacts/release"


@dataclass(frozen=True)
class Gates:
    """The limits that a variant must meet. `over` is eager, or another variant of the same model, device and sizes."""

    parity: Literal["", "exact", "rounding", "drift", "quantized"] = option(
        "", "The worst verdict allowed: exact < rounding < drift < quantized."
    )
    propagate_nan: bool = option(
        False, "Whether NaN and infinity must be propagated wherever eager does; a note lists the exceptions."
    )
    max_p99_ms: float | None = option(None, "Upper limit of the 99th percentile of the latency, in ms.", above=0)
    min_speedup: float | None = option(
        None, "Lower limit of the speed-up relative to `over`, by the lower end of its 95% interval.", above=0
    )
    over: str = option(
        EAGER,
        "The baseline of min_speedup: eager, or another variant of the same model, device and sizes.",
    )
    max_mb: float | None = option(
        None, "Upper limit of the size of all files of the variant, in MB (10^6 bytes).", above=0
    )
    min_metric: float | None = option(None, "Lower limit of the recipe's metric.")
    max_metric_loss: float | None = option(None, "Upper limit of eager's metric minus the variant's.", minimum=0)
    cpp: bool = option(
        False, "Whether the artifact must run in C++ with exporter-run; its latency is then measured there."
    )


@dataclass(frozen=True)
class Step:
    """One variant's bundle, the unit of running, keeping and resuming. Plain data, so it can be pickled."""

    name: str  # MODEL/DEVICE[/SIZES]/VARIANT
    request: Request
    gates: Gates = field(default_factory=Gates)
    line: int = 1  # the model's line in the release file
    gate_lines: dict[str, int] = field(default_factory=dict)
    key: str = ""  # what it must still be when the step starts (see `keys`); not checked if empty
    files: frozenset[Path] = frozenset()  # those that the key covers

    @property
    def variant(self) -> targets.Variant:
        """The only variant of the step."""
        return self.request.variants[0]

    def beside(self, variant: str) -> str:
        """Return the name of another variant's step, for the same model, device and sizes."""
        return f"{self.name.removesuffix(self.variant.name)}{variant}"


def make(file: ReleaseFile, out: Path, only: Sequence[str] = ()) -> tuple[list[Step], list[str]]:
    """Return all steps, in the file's order, with bundles in `out`, and warnings.

    Paths in the file are relative to the current directory. The bundles record `only`, the patterns by which the
    caller chooses steps. Raises UsageError if a setting cannot be honoured.
    """
    command = shlex.join(("exporter", "release", str(file.path), *(word for one in only for word in ("--only", one))))
    steps: dict[str, Step] = {}
    warnings: list[str] = []
    for index in range(len(file.data["models"])):
        model = _Model(file, index, command)
        for step in model.steps(out):
            if step.name in steps:
                remedy = "give one of the models a different name or different targets"
                raise model.error("model", f"{step.name} is already defined by line {steps[step.name].line}", remedy)
            steps[step.name] = step
        warnings += [file.located(model.place("targets"), text) for text in model.left_out()]
    for step in steps.values():
        _require_baseline(file, step, steps)
    return list(steps.values()), warnings


def _require_baseline(file: ReleaseFile, step: Step, steps: dict[str, Step]) -> None:
    over = step.gates.over
    if over != EAGER and step.beside(over) not in steps:
        beside = ", ".join(s.variant.name for s in steps.values() if step.beside(s.variant.name) == s.name)
        problem = step.gate_lines["over"], f"gates.over: there is no {step.beside(over)}"
        raise ReleaseFileError(file.path, [problem], f"choose {EAGER} or one of {beside}")


class _Model:
    """One table of `models`, with the settings that it inherits from the top level."""

    def __init__(self, file: ReleaseFile, index: int, command: str) -> None:
        self.file, self.index, self.command = file, index, command
        self.own: dict[str, Any] = file.data["models"][index]
        self.all = {k: v for k, v in file.data.items() if k not in ("out", "models")} | self.own
        self.gates = Gates(**file.data.get("gates", {}) | self.own.get("gates", {}))
        self.targets = ",".join(self.all.get("targets", TARGETS))
        self.precisions = tuple(dict.fromkeys(self.all.get("precisions", (FP32,))))

    def place(self, *keys: str) -> Place:
        """Return where a setting is written: in the model's table or at the top level."""
        found: Any = self.own
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return keys if found is None and keys[0] in self.file.data else ("models", self.index, *keys)

    def error(self, key: str, cause: str, remedy: str = "") -> UsageError:
        """Return an error with the place of one of the model's settings."""
        return self.file.error(self.place(key), cause, remedy)

    def left_out(self) -> tuple[str, ...]:
        """Return a message for each target that does not support one of the precisions."""
        return targets.left_out(self.targets, self.precisions)

    def steps(self, out: Path) -> Iterator[Step]:
        """Yield the model's steps: one for each device, sizes and variant."""
        source = self._source()
        variants = self._or_error("targets", targets.parse, self.targets, self.precisions)
        lines = {key: self.file.line(self.place("gates", key)) for key in vars(self.gates)}
        self._require_timing()
        for size, (low, high, *step) in self.all.get("ranges", {}).items():
            if low > high or (step and not high // step[0] * step[0] >= low):
                of = f" in multiples of {step[0]}" if step else ""
                cause = f"the range {low} to {high}{of} is empty"
                raise self.file.error(self.place("ranges", size), cause, "[min, max] or [min, max, step]")
        for device, sizes in itertools.product(self.all.get("devices", ("cpu",)), self.all.get("sizes", ({},))):
            whole = self._request(source, variants, out, device, sizes)
            self._require_valid(whole)
            self._require_sizes(whole)
            at = (",".join(f"{name}={size}" for name, size in sizes.items()),) if sizes else ()
            for variant in variants:
                name = source_lines.printable("/".join((self.own.get("name", source.label), device, *at, variant.name)))
                request = replace(whole.part(variant), out=out / layout.stem(name))
                self._or_error("model", request.validate)
                over = variant.name == self.gates.over
                gates = replace(self.gates, min_speedup=None, over=EAGER) if over else self.gates
                yield Step(name, request, gates, self.file.line(("models", self.index)), lines)

    def _require_sizes(self, whole: Request) -> None:
        """Raise an error for sizes that the model surely does not take, or that are outside their range."""
        entries = probing.entry_sizes(whole.entries)
        written = written_sizes.read(whole.source)
        if written is None:
            base = {name: size for name, size in whole.sizes.items() if name in whole.ranges}
            self._or_error("sizes", probing.check_sizes, base, whole.ranges)
            known = [{name: size for name, size in one.items() if name in whole.ranges} for one in entries]
            self._or_error("entries", probing.check_entries, known, whole.ranges)
            return
        for key, sizes, dynamic in (
            ("ranges", {}, "all"),
            ("sizes", whole.sizes, "all"),
            ("dynamic", whole.sizes, whole.dynamic),
        ):
            _, symbols = self._or_error(key, probing.choose_sizes, *written, sizes, whole.ranges, dynamic)
        self._or_error("entries", probing.check_entries, entries, symbols)

    def _require_valid(self, whole: Request) -> None:
        """Raise an error with the line of the setting that is not valid for the variants together."""
        try:
            whole.validate()
        except UsageError as error:
            said = f"{error} {error.remedy}".replace(",", " ").replace("=", " ").split()
            given = (one for one in settings(RunSettings) if one.key in self.all)
            named = (one.key for one in given if any(flag in said for flag in one.flag.split("/")))
            raise self.error(next(named, None) or "model", str(error), error.remedy) from error

    def _or_error(self, key: str, function: Any, *arguments: Any) -> Any:
        """Call the function and add the setting's line to a UsageError."""
        try:
            return function(*arguments)
        except UsageError as error:
            raise self.error(key, str(error), error.remedy) from error

    def _source(self) -> recipes.Source:
        for setting in settings(SourceSettings):
            if setting.option.file and setting.key in self.own and not Path(self.own[setting.key]).is_file():
                raise self.error(setting.key, f"there is no file {self.own[setting.key]}", "check the path")
        about = SourceSettings(**_settings(SourceSettings, self.own))
        if about.checkpoint and self.all.get("weights") == "pretrained":
            raise self.error("checkpoint", 'weights = "pretrained" is also set', "remove one of them")
        self._or_error("allow_partial", about.require_consistent)
        inputs = str(Path(about.inputs_file).absolute()) if about.inputs_file else ""
        found = self._or_error("model", recipes.find, self.own["model"], inputs, about.task)
        self._or_error("model", recipes.require_mentioned, found)
        source: recipes.Source = self._or_error("dims", recipes.adjusted, found, about)
        return source

    def _require_timing(self) -> None:
        for gate in ("max_p99_ms", "min_speedup"):
            if getattr(self.gates, gate) is not None and not self.all.get("bench", True):
                here, bench = self.place("gates", gate), self.place("bench")
                cause = f"bench is false in line {self.file.line(bench)}, so models[{self.index}] is not timed"
                shared = here == ("gates", gate) and bench != ("bench",)
                remedy = f"remove one of them{', or set the gate only in models that are timed' if shared else ''}"
                raise self.file.error(here, cause, remedy)

    def _request(
        self,
        source: recipes.Source,
        variants: tuple[targets.Variant, ...],
        out: Path,
        device: str,
        sizes: dict[str, int],
    ) -> Request:
        asked = _settings(RunSettings, self.all)
        portable = any(map(targets.is_portable, variants)) and asked.get("portable", False)
        return Request(
            source.label,
            source,
            variants,
            out,
            device,
            sizes=sizes,
            ranges={
                name: Range(low, high).within(low, high, *step)
                for name, (low, high, *step) in self.all.get("ranges", {}).items()
            },
            command=self.command,
            asked=_absolute_name(source) or self.own["model"],
            least_runs=0 if self.gates.max_p99_ms is None else runs_for(99),
            **asked | {"portable": portable},
        )


def _settings(record: type, table: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a record that a table sets, with absolute paths of files."""
    found: dict[str, Any] = {}
    for setting in settings(record):
        if setting.key in table:
            value = table[setting.key]
            if setting.multiple:
                value = tuple(str(Path(one).absolute()) if setting.option.file else one for one in value)
            found[setting.name] = value
    return found


def _absolute_name(source: recipes.Source) -> str:
    """Return the model's name with an absolute path, valid in any directory, or "" if it needs no rewriting."""
    if source.kind == "file":
        return f"{source.place}:{source.attribute}"
    if source.kind != "source":
        return ""
    folder = Path(source.attribute).expanduser()
    if source.place == "hf" and folder.is_dir():
        return f"hf:{folder.resolve()}"
    return source.attribute if source.place == "saved" else ""
