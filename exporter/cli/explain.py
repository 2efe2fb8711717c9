"""`exporter explain MODEL`: what in the model is in the way of each target."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from exporter.cli._model import ModelName, choose_device, choose_source, ranges, read_sizes, single_sizes


@click.command(name="explain")
@click.argument("model", type=ModelName())
@click.option("--device", metavar="cpu|cuda[:N]", help="Where to run.  [default: cuda where there is one, else cpu]")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    callback=read_sizes,
    metavar="NAME=N",
    help="A size of the example, as sequence=128, or the range that is promised, as sequence=1..512; may be repeated.",
)
@click.option(
    "--weights",
    type=click.Choice(["auto", "pretrained", "random"]),
    default="auto",
    show_default=True,
    help="auto: pretrained where they can be had.",
)
@click.option(
    "--inputs",
    "inputs_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Dict of tensors from torch.save, instead of NAME_inputs; every size is then fixed.",
)
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Weights of your own, as for `exporter export`.",
)
@click.option("--allow-partial", is_flag=True, help="Load of the checkpoint what fits, and warn of the rest.")
@click.option("--task", default="", help="For hf:ID: the task whose model class is taken, as fill-mask.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="What torch printed, tracebacks.")
def command(model: str, device: str | None, as_json: bool, quiet: bool, verbose: bool, **given: Any) -> None:
    """Say what in MODEL is in the way of each target, without exporting it.

    TracerWarnings and whether they matter, what torch.jit.script cannot read, graph breaks and recompilations, what
    torch.export fixes, operators that ONNX lacks, and operators that C++ has to load.
    """
    from exporter import environment, explain, targets
    from exporter.job import Job
    from exporter.records import to_json
    from exporter.report import explanation

    source, sizes = choose_source(model, given), given["sizes"]
    options = targets.Options(device=choose_device(device), threads=environment.usable_cpus())
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        work = Path(folder)
        job = Job(source.label, source, given["weights"], 0, single_sizes(sizes), work, options, ranges(sizes))
        found = explain.run(job, work / "explain.log", _silent if quiet else _progress)
        if verbose:
            click.echo((work / "explain.log").read_text(errors="replace"), err=True)
    click.echo(to_json(found) + "\n" if as_json else explanation.render(found), nl=False)


def _progress(step: str) -> None:
    print(f"{step} …", file=sys.stderr, flush=True)


def _silent(step: str) -> None:
    """Nothing is said."""
