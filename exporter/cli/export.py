"""`exporter export MODEL`: the main job."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from exporter.cli import _options
from exporter.cli._goal import chosen, goal_options, least_runs
from exporter.cli._model import (
    choose_device,
    choose_source,
    given_sizes,
    model_options,
    ranges,
    read_sizes,
    single_sizes,
    sweep,
)
from exporter.core import source_lines
from exporter.core.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from exporter.core.records import Manifest
    from exporter.runs.request import Request

DEFAULT_TARGETS = "trace,script,compile,onnx"


class TargetList(click.ParamType[str]):
    """A comma list of targets, its last item completed."""

    name = "targets"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Targets and their variants."""
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
    help="Comma list of targets, each NAME or NAME:VARIANT.",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    metavar="fp32,tf32,bf16,...",
    help="Comma list of what each target computes in: fp32, tf32, bf16, fp16, int8. Inputs and outputs stay the "
    "model's own. A target may also name its own, as trace@int8.",
)
@model_options
@click.option(
    "--specialize",
    multiple=True,
    callback=read_sizes,
    metavar="NAME=N,N,...",
    help="Build one artifact with an entry for each of these sizes, as batch=1,8,32: for what cannot stay dynamic.",
)
@click.option(
    "--state",
    type=click.Choice(["carry", "inputs"]),
    default="carry",
    show_default=True,
    help="Who keeps what a call leaves for the next: carry, the artifact does; inputs, the caller does, who passes it "
    "as inputs called state.NAME and finds it among the outputs.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the bundle goes.  [default: artifacts/MODEL]")
@click.option(
    "--replace",
    is_flag=True,
    help="Put a run in which a variant failed in the place of a bundle in which it, or one that was not asked for, "
    "passes. Without it such a run goes beside that bundle, to NAME.failed.",
)
@_options.THREADS
@_options.time_budget("Seconds of timed calls a variant and session, on average; at least 5 calls of each count.")
@_options.WAIT_QUIET
@_options.timeout(1800.0, "Limit for one export or one answer of a session.")
@click.option(
    "--memory-limit",
    "memory_limit_gb",
    type=click.FloatRange(0.1),
    metavar="GB",
    help="Private memory that one export or Python session may take.  [default: no limit]",
)
@click.option("--no-bench", is_flag=True, help="Export and check, but time nothing.")
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance of parity.  [default: by precision]")
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance of parity.  [default: by precision]")
@click.option(
    "--min-metric", type=float, help="Fail a variant whose metric, by the recipe's metric(outputs, sample), is less."
)
@click.option(
    "--max-metric-loss", type=click.FloatRange(0), help="Fail a variant whose metric is less than eager's by more."
)
@click.option("--opset", type=click.IntRange(18), help="ONNX opset.  [default: torch's]")
@click.option("--allow-cpu-fallback", is_flag=True, help="Let onnxruntime run on the CPU where CUDA was asked for.")
@click.option(
    "--cuda-graphs",
    is_flag=True,
    help="Let onnxruntime capture CUDA graphs. A model that cannot be captured fails; exporter-run captures unasked.",
)
@click.option("--fullgraph", is_flag=True, help="Let a graph break fail what torch.compile compiles just in time.")
@click.option(
    "--portable/--native",
    default=False,
    show_default=True,
    help="Compile packages for any x86-64-v3 CPU (AVX2), or for this one. GPU code is for this GPU's kind in either.",
)
@goal_options
@click.option("--json", "as_json", is_flag=True, help="Print the manifest instead of the table.")
@_options.QUIET
@click.option("-v", "--verbose", is_flag=True, help="Logs of what failed, tracebacks.")
def command(model: str, targets_text: str, device: str | None, out: Path | None, **options: Any) -> int:
    """Export MODEL to every target, check parity, measure latency, and print the table.

    MODEL is a recipe's name (see `exporter models`), path/to/file.py:NAME, hf:ID[@REVISION] or hf:FOLDER,
    torchvision:NAME, timm:NAME, or a saved program under any name: TorchScript or an ExportedProgram.

    Exit codes: 0 all passed, 1 a variant failed or lost parity, 2 cannot be done as asked, 130 interrupted.
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
    """Why the bundle that was there stays, and where the new one is."""
    from exporter.bundle import publishing

    lost = ", ".join(publishing.lost(request.out, manifest))
    why = f"{lost} passed there and would be gone" if manifest.passes else "nothing passed in this run"
    insist = "; --replace insists" if manifest.passes else ""
    return f"{request.out} stays as it was, for {why}: this run is in {place}{insist}"


def _refuse_anothers(request: Request) -> None:
    """UsageError where the default place holds the bundle of another model: two files may have a `net` each."""
    from exporter.bundle import layout

    try:
        held = layout.read_manifest(request.out).model.source
    except ArtifactError:
        return
    if _named(held) != _named(request.asked):
        raise UsageError(f"{request.out} holds the bundle of another model, {held}", "give --out, or remove it")


def _named(asked: str) -> str:
    """A model as it was asked for, without the folder of its file and without a revision."""
    return Path(asked).name.partition("@")[0]


def _request(model: str, targets_text: str, device: str | None, out: Path | None, options: dict[str, Any]) -> Request:
    from exporter import targets
    from exporter.core import environment
    from exporter.core.records import Goal, Range
    from exporter.runs.request import Request

    source = choose_source(model, options)
    given = given_sizes(options)
    precisions = targets.parse_precisions(options["precision"])
    return Request(
        model=source.label,
        source=source,
        variants=tuple(targets.parse(targets_text, precisions)),
        out=out or Path("artifacts") / source.label,
        device=choose_device(device),
        sizes=single_sizes(given),
        sweep=sweep(given),
        ranges=ranges(given)
        | {name: Range(min(sizes), max(sizes), sizes) for name, sizes in options["specialize"].items()},
        dynamic=options["dynamic"],
        state=options["state"],
        weights=options["weights"],
        seed=options["seed"],
        threads=options["threads"] or environment.usable_cpus(),
        time_budget=options["time_budget"],
        wait_quiet=options["wait_quiet"],
        least_runs=least_runs(options),
        timeout=options["timeout"],
        memory_limit_gb=options["memory_limit_gb"] or 0.0,
        bench=not options["no_bench"],
        rtol=options["rtol"],
        atol=options["atol"],
        min_metric=options["min_metric"],
        max_metric_loss=options["max_metric_loss"],
        opset=options["opset"],
        allow_cpu_fallback=options["allow_cpu_fallback"],
        cuda_graphs=options["cuda_graphs"],
        fullgraph=options["fullgraph"],
        portable=options["portable"],
        ops_libs=options["ops_libs"],
        replace=options["replace"],
        command=shlex.join(["exporter", "export", *sys.argv[1 + (len(sys.argv) > 1 and sys.argv[1] == "export") :]]),
        asked=model,
        warnings=targets.left_out(targets_text, precisions),
        goal=chosen(Goal(), options),
    )


def again(manifest: Manifest) -> Request:
    """The request that made a bundle, from the commands that its manifest has for each variant.

    UsageError where it was made otherwise, or a file that it names is not there.
    """
    from exporter.core.records import EAGER
    from exporter.model import recipes

    variants = [variant for variant in manifest.variants if variant.name != EAGER]
    try:
        words = shlex.split(variants[0].reproduce) if variants else []
    except ValueError:
        words = []
    if words[:2] != ["exporter", "export"]:
        cause = "it records no command that made it, as for a model in memory" if variants else "it has no variant"
        raise UsageError(f"the bundle cannot be built again: {cause}", "export again, and `exporter compare` the two")
    try:
        given = command.make_context("export", words[2:]).params
        request = _request(given.pop("model"), ",".join(v.name for v in variants), given.pop("device"), None, given)
    except (click.ClickException, click.exceptions.Exit, UsageError) as error:
        cause = error.format_message() if isinstance(error, click.ClickException) else str(error)
        if isinstance(error, click.exceptions.Exit):
            cause = "its command makes nothing"
        remedy = f"{getattr(error, 'remedy', '') or 'put it back'}; paths count from the folder where it was exported"
        raise UsageError(f"the bundle cannot be built again: {cause}", remedy) from error
    had = manifest.model.weights
    weights = had if request.weights == "auto" and had in recipes.WEIGHTS else request.weights
    return dataclasses.replace(request, model=manifest.model.name, command=manifest.command, weights=weights)


def _show_logs(manifest: Any, place: Path) -> None:
    for record in manifest.variants:
        if record.status == "failed":
            click.echo(source_lines.printable(f"\n--- {record.name}: {record.log}"), err=True)
            click.echo(source_lines.printable((place / record.log).read_text(errors="replace")[-4000:]), err=True)
