"""`exporter export MODEL`: export, check and time a model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from exporter.cli import _options
from exporter.cli._goal import chosen, goal_options, least_runs
from exporter.cli._model import choose_device, choose_source, model_options, model_settings, read_sizes
from exporter.core import source_lines
from exporter.core.errors import ArtifactError, UsageError
from exporter.core.records import Goal
from exporter.core.settings import (
    BuildSettings,
    ModelSettings,
    ParitySettings,
    RunSettings,
    SessionSettings,
    TimingSettings,
)
from exporter.core.size_range import Range

if TYPE_CHECKING:
    from exporter.core.records import Manifest
    from exporter.runs.request import Request

DEFAULT_TARGETS = "trace,script,compile,onnx"


class TargetList(click.ParamType[str]):
    """A comma-separated list of targets; shell completion completes the last one."""

    name = "targets"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return targets and their variants."""
        from exporter import targets

        head, comma, last = incomplete.rpartition(",")
        known = [f"{name}:{v}" if v else name for name, t in targets.usable().items() for v in t.variants]
        return [CompletionItem(f"{head}{comma}{name}") for name in known if name.startswith(last)]


@click.command(
    name="export",
    short_help="Export, check and time a model.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--targets",
    "targets_text",
    type=TargetList(),
    default=DEFAULT_TARGETS,
    show_default=True,
    help="Comma-separated targets, each NAME or NAME:VARIANT.",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    metavar="fp32,tf32,bf16,...",
    help="Comma-separated precisions to compute in: fp32, tf32, bf16, fp16, int8; or fp16w and int8w, which compute in "
    "float32 with the weights of linear layers and embeddings stored in float16 or int8. Inputs and outputs keep the "
    "model's dtypes. A target can also name its own, such as trace@int8, or trace@int8+fp32:head, which leaves the "
    "layer head in float32.",
)
@model_options
@click.option(
    "--specialize",
    multiple=True,
    callback=read_sizes,
    metavar="NAME=N,N,...",
    help="Build one artifact with an entry for each of these sizes (batch=1,8,32). Use it for a size that cannot stay "
    "dynamic.",
)
@_options.of(ModelSettings, "state")
@click.option("--out", type=click.Path(path_type=Path), help="The bundle's directory.  [default: artifacts/MODEL]")
@_options.of(RunSettings, "replace")
@_options.of(SessionSettings, "threads")
@_options.of(TimingSettings)
@_options.of(RunSettings, "tune")
@_options.of(SessionSettings, "timeout")
@_options.of(BuildSettings, "memory_limit_gb")
@_options.of(ParitySettings)
@_options.of(BuildSettings, "opset", "keep_float", "inductor", "fallback", "entries", "graph_optimization")
@_options.of(BuildSettings, "session_options", "reuse")
@_options.of(SessionSettings, "allow_cpu_fallback", "cuda_graphs")
@_options.of(BuildSettings, "fullgraph", "channels_last", "portable")
@goal_options("latency")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest instead of the table.")
@_options.QUIET
@click.option("-v", "--verbose", is_flag=True, help="Show the logs of failed variants, and tracebacks.")
def command(model: str, targets_text: str, device: str | None, out: Path | None, **options: Any) -> int:
    """Export MODEL to each target in --targets, check parity, measure latency, and print the table.

    MODEL is a recipe's name (see `exporter models`), path/to/file.py:NAME, hf:ID[@REVISION] or hf:FOLDER,
    torchvision:NAME, timm:NAME, or a saved program under any name: TorchScript or an ExportedProgram.

    Exit codes: 0 every variant passed, 1 a variant failed or lost parity, 2 the request is invalid, 130 interrupted.
    """
    from exporter import report
    from exporter.cli import _progress
    from exporter.runs import pipeline

    request = _request(model, targets_text, device, out, options)
    if out is None:
        _refuse_anothers(request)
    with _progress.listener(quiet=options["quiet"]) as listener:
        manifest, place = pipeline.run(request, listener)
    click.echo(report.render(manifest, "json" if options["as_json"] else "table", place), nl=False)
    if place != request.out.absolute():
        click.echo(f"warning: {_kept(request, manifest, place)}", err=True)
    if options["verbose"]:
        _show_logs(manifest, place)
    return 0 if all(v.status == "passed" for v in manifest.variants) else 1


def _kept(request: Request, manifest: Manifest, place: Path) -> str:
    """Explain why the existing bundle is kept, and where the new one is."""
    from exporter.bundle import publishing

    lost = ", ".join(publishing.lost(request.out, manifest))
    why = f"{lost} passed in it and would be lost" if manifest.passes else "nothing passed in this run"
    insist = "; --replace replaces it" if manifest.passes else ""
    return f"{request.out} was kept, because {why}; this run is in {place}{insist}"


def _refuse_anothers(request: Request) -> None:
    """Raise UsageError if the default directory holds another model's bundle: two files may each have a `net`."""
    from exporter.bundle import layout

    try:
        held = layout.read_manifest(request.out).model.source
    except ArtifactError:
        return
    if _named(held) != _named(request.asked):
        raise UsageError(f"{request.out} holds the bundle of another model, {held}", "give --out, or remove it")


def _named(asked: str) -> str:
    """Return the model as requested, without its file's directory and without a revision."""
    return Path(asked).name.partition("@")[0]


def _request(model: str, targets_text: str, device: str | None, out: Path | None, options: dict[str, Any]) -> Request:
    from exporter import targets
    from exporter.runs.request import Request

    source = choose_source(model, options)
    precisions = targets.parse_precisions(options["precision"])
    entries = {name: Range(min(sizes), max(sizes), sizes) for name, sizes in options["specialize"].items()}
    about_model = model_settings(options)
    return Request(
        source.label,
        source,
        tuple(targets.parse(targets_text, precisions)),
        out or Path("artifacts") / source.label,
        choose_device(device),
        command=shlex.join(["exporter", "export", *sys.argv[1 + (len(sys.argv) > 1 and sys.argv[1] == "export") :]]),
        asked=model,
        warnings=targets.left_out(targets_text, precisions),
        least_runs=least_runs(options),
        goal=chosen(Goal(), options),
        **_options.given(Request, options) | about_model | {"ranges": about_model["ranges"] | entries},
    )


def _show_logs(manifest: Any, place: Path) -> None:
    for record in manifest.variants:
        if record.status == "failed":
            click.echo(source_lines.printable(f"\n--- {record.name}: {record.log}"), err=True)
            click.echo(source_lines.printable((place / record.log).read_text(errors="replace")[-4000:]), err=True)
