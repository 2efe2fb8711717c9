"""`exporter bisect BUNDLE|MODEL VARIANT`: find where a variant goes wrong."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from exporter.cli import _bundle, _options
from exporter.cli._model import choose_device, choose_source, model_options, model_settings
from exporter.core.errors import UsageError
from exporter.core.settings import SessionSettings

OWN = ("timeout", "as_json", "quiet")  # options that apply to bundles too


@click.command(name="bisect", short_help="Find the operator at which a variant goes wrong.")
@model_options
@click.argument("variant")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for repro.py and issue.md.  [default: NAME-bisect/VARIANT in the current folder]",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Find options with which the variant passes, prove it, and measure what they cost: layers that a variant in "
    "int8, bf16, fp16, int8w or fp16w needs in floating point, a setting of inductor, an operator to leave to torch, "
    "or a level of onnxruntime's graph optimizations.",
)
@_options.of(
    SessionSettings, "timeout", default=1800.0, help="Limit for loading the model, and for each step, in seconds."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@_options.QUIET
@_options.TRACEBACKS
def command(model: str, variant: str, out: Path | None, fix: bool, **options: Any) -> int:
    """Find the operator, the module and the source line at which VARIANT of a bundle goes wrong, and why.

    MODEL is a bundle's directory, or a model, named as for `exporter export`; its options apply to a model only. The
    variant is built again from growing parts of the exported program, and each part is compared with float64. If an
    operator is to blame, a program that shows it, and a text for an upstream issue, are written.

    The verdict is one of: rounding, reduced precision, converter, compiler, runtime, constant baked in, altered
    artifact, not located.

    Exit codes: 0 the variant passes, and nothing is wrong; 1 something is; 2 the request is invalid.
    """
    from exporter.core.json_codec import to_json
    from exporter.report import bisection
    from exporter.runs import bisect_variant

    origin = click.get_current_context().get_parameter_source
    begun = _options.steps(options["quiet"])
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        place = Path(model)
        if not (place / "manifest.json").is_file():
            begun("export")
            place = _exported(model, variant, Path(folder), options)
        elif others := sorted(
            name for name in options if name not in OWN and origin(name) is ParameterSource.COMMANDLINE
        ):
            flags = ", ".join(one.opts[0] for one in click.get_current_context().command.params if one.name in others)
            raise UsageError("a bundle has its own settings", f"leave out what applies to a model: {flags}")
        files = _bundle.beside(Path(model), "bisect", out) / ("" if out else variant)
        found = bisect_variant.run(place, variant, files, begun, options["timeout"], fix)
    click.echo(to_json(found) + "\n" if options["as_json"] else bisection.render(found, files), nl=False)
    return 0 if found.passes else 1


def _exported(model: str, variant: str, folder: Path, options: dict[str, Any]) -> Path:
    """Export the variant without timing it, and return the bundle."""
    from exporter import targets
    from exporter.core.progress import Listener
    from exporter.runs import pipeline
    from exporter.runs.request import Request

    source = choose_source(model, options)
    request = Request(
        source.label,
        source,
        tuple(targets.parse(variant)),
        folder / "bundle",
        choose_device(options["device"]),
        asked=model,
        **_options.given(Request, options) | model_settings(options) | {"bench": False},
    )
    _, place = pipeline.run(request, Listener())
    return place
