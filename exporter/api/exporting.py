"""Export a model, in memory or by name, to a bundle. Import `export` from `exporter`."""

from __future__ import annotations

import difflib
import inspect
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec

import torch

from exporter import targets as routes
from exporter.core.contract_records import FP32
from exporter.core.errors import UsageError
from exporter.core.option import pick, settings
from exporter.core.records import Manifest
from exporter.core.settings import RunSettings, SourceSettings
from exporter.core.size_range import Range
from exporter.evidence import samples as own_samples
from exporter.model import recipes
from exporter.runs import pipeline
from exporter.runs.request import Request


@dataclass(frozen=True)
class Bundle:
    """The directory with the artifacts, and the manifest with the results."""

    path: Path
    manifest: Manifest = field(repr=False)

    @property
    def failed(self) -> dict[str, str]:
        """The reason of each failed variant, by its name. Empty if all variants passed."""
        return {variant.name: variant.reason for variant in self.manifest.variants if variant.status == "failed"}


@dataclass(frozen=True)
class ExportArguments(RunSettings, SourceSettings):
    """The arguments of `export`."""

    model: torch.nn.Module | str
    inputs: Any = None
    _: KW_ONLY
    targets: str | Sequence[str] = "trace,script,compile,onnx"
    precision: str | Sequence[str] = FP32
    device: str = "cpu"
    out: str | PathLike[str] | None = None
    name: str | None = None
    sizes: Mapping[str, tuple[int, ...]] | None = None
    example_sizes: Mapping[str, int] = field(default_factory=dict)
    sweep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    samples: Callable[[], Iterable[Any]] | Iterable[Any] | None = None
    metric: Callable[[dict[str, torch.Tensor], Any], float] | None = None


def _export(given: ExportArguments) -> Bundle:
    """Export a model to a bundle.

    Args:
        model: a module in memory (it is exported in eval mode), or a name as on the command line: a recipe's name,
            `file.py:NAME`, `hf:ID[@REVISION]`, `torchvision:NAME`, `timm:NAME`, or a saved program (`.pt`, `.pt2`).
        inputs: for a module: a dict of tensors by argument name, a tuple or a tensor; or a function of sizes that
            returns them (`def inputs(batch=1, sequence=14)`). Only with a function can dimensions stay dynamic.
        targets: a list or a comma-separated string. A target may set its precision, as in `trace@int8`.
        precision: a list or a comma-separated string: the precisions of all other targets, out of fp32, tf32, bf16,
            fp16, int8, fp16w, int8w.
        device: `cpu`, `cuda` or `cuda:N`.
        out: the bundle's directory, by default `artifacts/NAME`. If a variant fails that passes in the bundle that is
            already there, that bundle stays, and the new one is written beside it. `Bundle.path` says where.
        name: the model's name, by default the module's class in lower case.
        sizes: for a module: the range of each size, `{"batch": (1, 64)}`, optionally with a step that sizes are
            multiples of, `{"height": (32, 512, 16)}`.
        example_sizes: sizes of the example that differ from the defaults of `inputs`, `{"sequence": 128}`.
        sweep: sizes to time, the example's first, `{"batch": (1, 8, 32)}`.
        ranges: the range of each size that the artifacts must support, in place of the model's own range.
        samples: for a module: real inputs in the form of `inputs`, or a function that returns them. The first 64 are
            used as cases of the golden and to calibrate int8.
        metric: for a module with samples: a function of the outputs by name and the sample they belong to. Higher is
            better. Its mean is reported for eager and every variant, and checked against `min_metric` and
            `max_metric_loss`.
        {settings}

    Returns:
        The bundle's path and manifest. A failed variant raises no error: see `Bundle.failed`.

    Raises:
        UsageError: the request cannot be met; nothing was written.
        JobError: a process that all variants need cannot be started.
    """
    _refuse_contradictions(given)
    chosen, precision = (one if isinstance(one, str) else ",".join(one) for one in (given.targets, given.precision))
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        source = _source(given, Path(folder))
        label = given.name or source.label
        precisions = routes.parse_precisions(precision)
        request: Request = pick(
            Request,
            given,
            model=label,
            source=source,
            variants=tuple(routes.parse(chosen, precisions)),
            out=Path(given.out) if given.out is not None else Path("artifacts") / label,
            sizes={size: first for size, (first, *_) in given.sweep.items()} | dict(given.example_sizes),
            command="exporter.export(...)",
            asked=given.model if isinstance(given.model, str) else "",
            warnings=routes.left_out(chosen, precisions),
        )
        manifest, path = pipeline.run(request)
    return Bundle(path, manifest)


P = ParamSpec("P")


def _with_keywords(record: Callable[P, ExportArguments]) -> Callable[P, Bundle]:
    """Return `_export` with one parameter for each field of its arguments."""
    signature = inspect.signature(record)

    def export(*args: P.args, **kwargs: P.kwargs) -> Bundle:
        if unknown := kwargs.keys() - signature.parameters.keys():
            name = min(unknown)
            close = difflib.get_close_matches(name, signature.parameters, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"export() has no argument {name}", f"{hint}Its arguments are {', '.join(signature.parameters)}"
            )
        given: Any = {name: _text(name, value) for name, value in kwargs.items()}
        return _export(record(*args, **given))

    known = (setting for kind in (SourceSettings, RunSettings) for setting in settings(kind))
    lines = "\n        ".join(f"{setting.name}: {setting.option.help}" for setting in known)
    export.__doc__ = (_export.__doc__ or "").replace("{settings}", lines)
    export.__signature__ = signature.replace(return_annotation=Bundle)  # type: ignore[attr-defined]
    export.__qualname__ = "export"
    return export


export = _with_keywords(ExportArguments)
_FILES = frozenset(setting.name for setting in settings(SourceSettings) if setting.option.file)


def _text(name: str, value: Any) -> Any:
    """Return an argument's value, with the path of a file as a string and "" for None."""
    return os.fspath(value or "") if name in _FILES and (value is None or isinstance(value, PathLike)) else value


def _source(given: ExportArguments, folder: Path) -> recipes.Source:
    if isinstance(given.model, str):
        return recipes.resolve(given.model, given, given.weights)
    own = {"inputs": given.inputs, "sizes": given.sizes, "samples": _listed(given.samples), "metric": given.metric}
    return recipes.adjusted(_pickle(given.model, own, folder, given.name), given)


def _refuse_contradictions(given: ExportArguments) -> None:
    """Raise UsageError if arguments have no effect or contradict each other."""
    given.require_valid()
    given.require_consistent(given.weights)
    own = [name for name in ("inputs", "sizes", "samples", "metric") if getattr(given, name) is not None]
    if isinstance(given.model, str) and own:
        remedy = f"remove {' and '.join(own)}; a recipe has inputs(), sizes, samples() and metric()"
        raise UsageError(f"{own[0]} applies only to a module in memory, and {given.model} is a name", remedy)
    if given.metric is not None and given.samples is None:
        raise UsageError("metric requires samples", "pass samples: real inputs, in the form of inputs")
    if empty := [size for size, values in given.sweep.items() if not values]:
        raise UsageError(f"sweep names no value of {empty[0]}", "give at least one, the example's first")
    if isinstance(given.model, str):
        return
    if given.task:
        raise UsageError("task has no effect on a module", "remove it; it applies only to hf:ID models")
    if given.inputs_file:
        raise UsageError("inputs_file has no effect on a module", "pass inputs")


def _listed(samples: Any) -> Any:
    """Return samples that can be pickled: a function, or a list of the first `MOST` of an iterable."""
    if samples is None or callable(samples):
        return samples
    if isinstance(samples, (torch.Tensor, Mapping, str)) or not isinstance(samples, Iterable):
        raise UsageError(f"samples is {type(samples).__name__}", "pass a list of inputs or a function returning one")
    return list(itertools.islice(samples, own_samples.MOST))


def _name(model: torch.nn.Module) -> str:
    """Return the model's class name in lower case; for TorchScript, that of the original class."""
    own = getattr(model, "original_name", "") if isinstance(model, torch.jit.ScriptModule) else ""
    return (own or type(model).__name__).lower()


def _pickle(model: torch.nn.Module, own: dict[str, Any], folder: Path, name: str | None) -> recipes.Source:
    """Pickle the module and its inputs, sizes, samples and metric to a file for the processes that export it."""
    import sys

    from exporter.model import pickling  # pickles classes and functions of a script by value

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is {type(model).__name__}", "pass a torch.nn.Module, a recipe's name or file.py:NAME")
    if own["inputs"] is None:
        raise UsageError("inputs is missing", "pass a dict of tensors, or a function of sizes that returns one")
    path = folder / "model.pt"
    try:
        pickling.save((model, own), path)
    except Exception as error:
        raise UsageError(f"the model cannot be pickled: {error}", "pass a recipe file instead: file.py:NAME") from error
    return recipes.Source("memory", str(path), name or _name(model), search_path=tuple(sys.path))
