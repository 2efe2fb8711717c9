"""The user's request, and the command that repeats a part of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter import targets
from exporter.core import machine_code, probing
from exporter.core.contract_records import FP32
from exporter.core.errors import ExportError, UsageError
from exporter.core.option import command_line, pick, settings
from exporter.core.precisions import MIXED, SMALL_WEIGHTS
from exporter.core.records import Goal, Manifest, RequestRecord
from exporter.core.settings import WEIGHTS, RunSettings, SizeSettings, SourceSettings
from exporter.core.tuning_records import Choice, changed, kept
from exporter.model import recipes
from exporter.model.recipes import Source
from exporter.targets import _ort_level
from exporter.workers.messages import Job

MACHINE = ("cpp.simdlen", "cpp.march", "cpp.weight_prepack")  # settings of inductor that --portable sets

NOT_REPEATED = ("seed", "weights", "threads", "replace", "wait_quiet", "tune")  # the first three are always written


@dataclass(frozen=True)
class Request(RunSettings, SizeSettings):
    """The user's request."""

    model: str
    source: Source
    variants: tuple[targets.Variant, ...]
    out: Path
    device: str = "cpu"
    command: str = ""
    asked: str = ""  # the model as the user wrote it, for commands that reproduce a step
    warnings: tuple[str, ...] = ()  # about the request itself
    least_runs: int = 0  # timed calls of each variant, if the goal bounds a percentile
    goal: Goal = field(default_factory=Goal)
    chosen: dict[str, tuple[Choice, ...]] = field(default_factory=dict)  # by variant: what an earlier run kept

    @property
    def precisions(self) -> tuple[str, ...]:
        """Return the variants' precisions, except fp32."""
        return tuple(dict.fromkeys(v.precision for v in self.variants if v.precision != FP32))

    @property
    def needs_program(self) -> bool:
        """Return whether a variant needs the program of torch.export."""
        return any(targets.get(v.target).needs_program and not targets.is_live(v) for v in self.variants)

    def validate(self) -> None:
        """Raise UsageError if the request cannot be met."""
        self.require_valid()
        self.require_sizes()
        if "tf32" in self.precisions and self.device == "cpu":
            raise UsageError("tf32 needs an NVIDIA GPU", "remove it, or use --device cuda")
        if self.fullgraph and not any(map(targets.is_live, self.variants)):
            remedy = "remove it, or add the target compile:default"
            raise UsageError("--fullgraph applies only to variants compiled just in time", remedy)
        if self.portable and not any(targets.is_portable(v) for v in self.variants):
            raise UsageError(
                "--portable applies only to packages of compile and to ONNX models in int8",
                "remove it, or add the target compile",
            )
        if self.inductor and not any(v.target == "compile" for v in self.variants):
            raise UsageError("--inductor applies only to the compile target", "remove it, or add the target compile")
        names = [parse_session_option(one) for one in self.session_options]
        if len(set(names)) < len(names):
            raise UsageError("--session-option sets an option twice", "give each once")
        for one in self.inductor:
            if not one.partition("=")[0] or "=" not in one:
                raise UsageError(f"--inductor {one!r} is not NAME=VALUE", "give freezing=False, for example")
            if self.portable and one.partition("=")[0] in MACHINE:
                raise UsageError(f"--inductor {one} changes what --portable sets", "remove one of the two")
            in_int8 = any(variant.base == "int8" for variant in self.variants)
            if one.partition("=")[0] == "freezing" and self.device != "cpu" and in_int8:
                raise UsageError(
                    "on a GPU, freezing would turn the weights of int8 back into bf16", f"remove --inductor {one}"
                )
        if self.device != "cpu" and (small := [v.name for v in self.variants if v.base in SMALL_WEIGHTS]):
            raise UsageError(
                f"{small[0]} stores its weights for products on a CPU",
                "on a GPU choose fp16 or bf16, or compile@int8, whose weights are in int8",
            )
        if self.keep_float and not any(map(_rounds, self.variants)):
            raise UsageError(f"--keep-float applies only to variants in {', '.join(MIXED)}", "remove it, or add one")
        if self.fallback and not any(map(_is_package, self.variants)):
            raise UsageError(
                "--fallback applies only to packages of the compile target", "remove it, or add the target compile"
            )
        entries = probing.entry_sizes(self.entries)
        if entries and not any(map(_is_package, self.variants)):
            raise UsageError(
                "--entries applies only to packages of the compile target", "remove it, or add the target compile"
            )
        if entries and any(bounds.choices for bounds in self.ranges.values()):
            raise UsageError("--entries and --specialize both give sizes a model of their own", "give one of them")
        if self.graph_optimization != "all" and not any(v.target == "onnx" for v in self.variants):
            raise UsageError(
                "--graph-optimization applies only to the onnx target", "remove it, or add the target onnx"
            )
        if self.session_options and not any(v.target == "onnx" for v in self.variants):
            raise UsageError("--session-option applies only to the onnx target", "remove it, or add the target onnx")
        if self.channels_last and not any(v.target == "trace" for v in self.variants):
            raise UsageError("--channels-last applies only to the trace target", "remove it, or add the target trace")
        if self.tune and not self.bench:
            raise UsageError("--tune needs timing, and --no-bench turns it off", "remove one of the two")
        if self.tune and all(map(targets.is_live, self.variants)):
            remedy = "remove it, or add a target that writes an artifact"
            raise UsageError("--tune does not apply to variants compiled just in time", remedy)
        if self.portable and any(map(_is_package, self.variants)):
            machine_code.require_portable()

    def part(self, variant: targets.Variant) -> Request:
        """Return the request for one of the variants alone, without the settings that apply only to others."""
        defaults = {one.name: one.default for one in settings(RunSettings)}
        return replace(self, variants=(variant,), **{name: defaults[name] for name in _not_of(variant)})

    def job(self, work: Path) -> Job:
        """Return the description that jobs get, with `work` for their temporary files."""
        job: Job = pick(Job, self, work=work, options=pick(targets.Options, self, scratch=str(work)))
        return job

    def options(self, job: Job, variant: targets.Variant) -> targets.Options:
        """Return the options of one variant of a job of this request, with what an earlier run kept for it."""
        found: targets.Options = changed(job.options.of(variant), self.chosen.get(variant.name, ()))
        return found

    @property
    def record(self) -> RequestRecord:
        """Return the request as the manifest records it."""
        about = recipes.asked_of(self.source)
        names = tuple(variant.name for variant in self.variants)
        model = "" if self.source.kind == "memory" else self.asked or self.model
        found: RequestRecord = pick(RequestRecord, self, about, model=model, targets=names)
        return found

    def reproduce(self, name: str) -> str:
        """Return a command that runs one variant again, with every option that affects it and is not the default.

        It builds what tuning chose, and does not tune again.
        """
        if self.source.kind == "memory":
            return f"exporter.export(model, inputs, targets={name!r}, out={f'{self.out}-again'!r})"
        words = ["exporter", "export", self.asked or self.model, "--targets", name, "--device", self.device]
        words += ["--seed", str(self.seed), "--weights", self.weights, "--threads", str(self.threads)]
        given = [
            shlex.join([*words, *self._sizes()]),
            command_line(recipes.asked_of(self.source)),
            command_line(changed(self, self.chosen.get(name, ())), *NOT_REPEATED, *_not_of(*targets.parse(name))),
            shlex.join(["--out", f"{self.out}-again", "-v"]),
        ]
        return " ".join(filter(None, given))

    def _sizes(self) -> Iterator[str]:
        for size, value in self.sizes.items():
            others = (other for other in self.sweep.get(size, ()) if other != value)
            yield from ("--size", f"{size}={','.join(map(str, (value, *others)))}")
        for size, bounds in self.ranges.items():
            if bounds.choices:
                yield from ("--specialize", f"{size}={','.join(map(str, bounds.choices))}")
            else:
                yield from ("--size", f"{size}={'..'.join(map(str, bounds.written))}")


def parse_session_option(given: str) -> str:
    """Return the name in a --session-option. Raises UsageError if onnxruntime's session has no such option."""
    try:
        return _ort_level.parse(given)[0]
    except ExportError as error:
        raise UsageError(str(error), error.remedy) from error


def _rounds(variant: targets.Variant) -> bool:
    """Return whether a variant computes in less than float32, so that --keep-float applies."""
    return variant.base in MIXED


def _is_package(variant: targets.Variant) -> bool:
    """Return whether a variant is a package of AOTInductor."""
    return variant.target == "compile" and not targets.is_live(variant)


def _not_of(variant: targets.Variant) -> Iterator[str]:
    """Yield the settings that do not apply to a variant, and that are refused if no variant uses them."""
    if variant.target != "compile":
        yield "inductor"
    if not _is_package(variant):
        yield from ("fallback", "entries")
    if variant.target != "onnx":
        yield from ("graph_optimization", "session_options")
    if variant.target != "trace":
        yield "channels_last"
    if not targets.is_portable(variant):
        yield "portable"
    yield "tune" if targets.is_live(variant) else "fullgraph"
    if not _rounds(variant):
        yield "keep_float"


def again(manifest: Manifest) -> Request:
    """Return the request that made a bundle. Raises UsageError if it is not recorded or names a missing file."""
    asked = manifest.request
    if asked is None or not asked.model:
        cause = "it was made from a module in memory" if asked else "its manifest records no request"
        raise UsageError(
            f"the bundle cannot be built again: {cause}", "export again, and run `exporter compare` on both bundles"
        )
    used = manifest.model.weights
    weights = used if asked.weights == "auto" and used in WEIGHTS else asked.weights
    try:
        about: SourceSettings = pick(SourceSettings, asked)
        source = recipes.resolve(asked.model, about, asked.weights)
        request: Request = pick(
            Request,
            asked,
            model=manifest.model.name,
            source=source,
            variants=tuple(targets.parse(",".join(asked.targets))),
            out=Path("artifacts") / source.label,
            command=manifest.command,
            asked=asked.model,
            weights=weights,
            chosen={one.name: choices for one in manifest.variants if (choices := kept(one.tuning))},
        )
        request.validate()
    except UsageError as error:
        remedy = f"{error.remedy or 'restore the file'}; paths are relative to the folder where it was exported"
        raise UsageError(f"the bundle cannot be built again: {error}", remedy) from error
    return request
