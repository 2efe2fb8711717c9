"""`exporter profile BUNDLE [VARIANT…]`: find where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle, _options
from exporter.core.errors import UsageError
from exporter.core.settings import SessionSettings, TimingSettings


@click.command(name="profile", short_help="Find the source lines on which each variant spends its time.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for the page, the Chrome traces, TensorBoard's folders and the JSON.  "
    "[default: NAME-profile in the current folder, for a bundle NAME]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    callback=_options.finite,
    default=4.0,
    show_default=True,
    help="Timed seconds a variant.",
)
@click.option(
    "--train",
    is_flag=True,
    help="Profile a training step with the recipe's loss(): train, train:model, train:apart, train:whole.",
)
@click.option("--top", type=click.IntRange(1), default=15, show_default=True, help="Lines to print.")
@_options.of(TimingSettings, "wait_quiet")
@_options.of(SessionSettings, "timeout", default=1800.0, help="Limit for each step, in seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@_options.QUIET
@_options.TRACEBACKS
def command(bundle: Path, variants: tuple[str, ...], out: Path | None, **options: Any) -> int:
    """Find where eager and the variants of BUNDLE spend their time: by module and source line, side by side.

    Latency is measured without a profiler, in rotation over all variants. The profile divides it among the lines of the
    model, and compares each with what this machine can move and compute, which is measured too. The model's code must
    be unchanged since the export. Packages of the compile target are built again for it.

    With --train, the variants are forms of a training step: the forward pass, the recipe's loss(outputs, inputs) and
    the backward pass, without an optimizer. `train` is eager. In `train:model` the model is compiled by torch.compile
    and the loss is not, in `train:apart` each is compiled alone, and in `train:whole` both are compiled as one. The
    time of a backward operator counts for the line that it differentiates.

    Exit codes: 0 every variant was profiled; 1 one could not be; 2 the request is invalid.
    """
    from exporter.core.json_codec import to_json
    from exporter.report import profile
    from exporter.runs import profile_bundle, profile_training

    asked = profile_bundle.Asked(variants, options["seconds"], options["timeout"], options["wait_quiet"])
    run = profile_training.run if options["train"] else profile_bundle.run
    folder = _bundle.beside(bundle, "profile", out)
    if not (bundle / "manifest.json").is_file():
        raise UsageError(
            f"{bundle} is not a bundle: it has no manifest.json", "give the folder that `exporter export` wrote"
        )
    profile.begin(folder)
    found, steps = run(bundle, asked, _options.steps(options["quiet"]))
    found = profile.write(found, steps, folder)
    shown = to_json(found) + "\n" if options["as_json"] else profile.render(found, folder, options["top"])
    click.echo(shown, nl=False)
    return 1 if any(one.reason for one in found.variants) else 0
