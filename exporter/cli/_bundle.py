"""Options and functions shared by the commands that load a BUNDLE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exporter.cli import _options
from exporter.core.errors import UsageError
from exporter.core.settings import SessionSettings

if TYPE_CHECKING:
    from exporter.bundle.signing import Trust
    from exporter.core.records import Manifest

trust_options = _options.together(
    click.option(
        "--public-key",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="PEM",
        help="Require a signature by the private key of this public key (`exporter sign --key`).",
    ),
    click.option(
        "--identity",
        default="",
        metavar="WHO",
        help="Require a sigstore signature by this identity: an email address or a URL.",
    ),
    click.option(
        "--issuer", default="", metavar="URL", help="The issuer of that identity, such as https://accounts.google.com."
    ),
)
OPS_LIBS = _options.of(
    SessionSettings, "ops_libs", help="Library that registers your own operators, as for the export; may be repeated."
)
bundle_options = _options.together(
    click.argument("bundle", type=click.Path(path_type=Path)),
    _options.of(SessionSettings, "threads"),
    _options.of(SessionSettings, "timeout", default=600.0, help="Time limit for one answer of a session, in seconds."),
    OPS_LIBS,
    _options.of(SessionSettings, "allow_cpu_fallback", "cuda_graphs"),
    trust_options,
    click.option("--json", "as_json", is_flag=True, help="Print the manifest with the new results."),
    _options.QUIET,
    _options.TRACEBACKS,
)


def trusted(options: dict[str, Any]) -> Trust:
    """Return the required signer. Raises UsageError if only one of --identity and --issuer is given."""
    from exporter.bundle.signing import Trust
    from exporter.core.errors import UsageError

    trust = Trust(options["public_key"], options["identity"], options["issuer"])
    if bool(trust.identity) != bool(trust.issuer):
        raise UsageError("--identity and --issuer belong together", "give both")
    return trust


def recheck(place: Path, options: dict[str, Any], timed: bool = False) -> Manifest:
    """Check the bundle again, time it if `timed`, and return the manifest; `options` come from `bundle_options`."""
    from exporter.cli import _progress
    from exporter.cli._goal import least_runs
    from exporter.runs import check_bundle

    how = check_bundle.CheckOptions(
        bench=timed,
        trust=trusted(options),
        least_runs=least_runs(options) if timed else 0,
        **_options.given(check_bundle.CheckOptions, options),
    )
    with _progress.listener(quiet=options["quiet"]) as listener:
        return check_bundle.run(place, how, listener)


def show(manifest: Manifest, place: Path, options: dict[str, Any]) -> int:
    """Print the manifest and return the exit code."""
    from exporter import report

    click.echo(report.render(manifest, "json" if options["as_json"] else "table", place), nl=False)
    return 0 if all(variant.status == "passed" for variant in manifest.variants) else 1


def beside(bundle: Path, suffix: str, out: Path | None) -> Path:
    """Return where a command writes: `out`, or a folder named after the bundle in the working directory.

    That is beside the bundle if the working directory is inside it. Raises UsageError if `out` is inside the bundle,
    where every file has a recorded hash.
    """
    folder, name = bundle.resolve(), f"{bundle.resolve().name}-{suffix}"
    if out is None:
        return folder.parent / name if Path(name).resolve().is_relative_to(folder) else Path(name)
    if (bundle / "manifest.json").is_file() and out.resolve().is_relative_to(folder):
        raise UsageError(f"{out} is inside the bundle, all of whose files are recorded", "give another --out")
    return out
