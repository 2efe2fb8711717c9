"""`exporter deploy`: prepare a bundle for serving."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exporter.cli import _bundle, _options

if TYPE_CHECKING:
    from exporter.core.records import Manifest
    from exporter.deploy import Deployment

_common = _options.together(
    click.argument("bundle", type=click.Path(path_type=Path)),
    click.option("--variant", metavar="NAME", help="The artifact to deploy.  [default: the bundle's recommendation]"),
    _bundle.trust_options,
    _options.TRACEBACKS,
)


@click.group(name="deploy", short_help="Turn a bundle into what a server runs.")
def command() -> None:
    """Turn a bundle into what a server runs. Verifies every file first, and deploys only artifacts that passed."""


@command.command(short_help="Make a folder that runs without Python.")
@_common
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@_bundle.OPS_LIBS
def cpp(bundle: Path, variant: str | None, out: Path, ops_libs: tuple[str, ...], **trust: Any) -> None:
    """Make a folder with exporter-run, every library that it loads, the artifact and the golden.

    The folder runs in place, or as the root of a chroot. The artifact is checked in it before it is moved to --out.
    """
    from exporter.deploy import cpp

    _show(cpp.deploy(bundle, _verified(bundle, trust), variant, out, ops_libs), out)
    click.echo(f"See {out / 'README'}.")


@command.command(short_help="Add a model to a Triton repository.")
@_common
@click.option("--repository", type=click.Path(path_type=Path), required=True, help="The model repository.")
@click.option("--name", metavar="MODEL", help="The model's name there.  [default: as in the bundle]")
@click.option("--version", type=click.IntRange(1), default=1, show_default=True, help="Other versions are kept.")
def triton(bundle: Path, variant: str | None, repository: Path, name: str | None, version: int, **trust: Any) -> None:
    """Add a model to a Triton repository: the artifact, its configuration, and a warm-up from the golden.

    TorchScript and AOTInductor use the PyTorch backend (packages need release 26.05 or later and run one request at a
    time); ONNX uses the ONNX Runtime backend. Triton batches requests if every tensor's first dimension is `batch`.
    """
    from exporter.deploy import triton

    deployment = triton.deploy(bundle, _verified(bundle, trust), variant, repository, name, version)
    _show(deployment, repository / deployment.model)
    quiet = "ORT_DISABLE_TELEMETRY=1 " if any((repository / deployment.model).glob("*/model.onnx")) else ""
    click.echo(f"Next: {quiet}tritonserver --model-repository {shlex.quote(str(repository))}")


@command.command(short_help="Make a context for docker build.")
@_common
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--runtime",
    type=click.Choice(["cpp", "onnxruntime"]),
    default="cpp",
    show_default=True,
    help="cpp: exporter-run from scratch, without Python. onnxruntime: in Python's slim image, without torch.",
)
@_bundle.OPS_LIBS
def docker(bundle: Path, variant: str | None, out: Path, runtime: str, ops_libs: tuple[str, ...], **trust: Any) -> None:
    """Make a context for `docker build`: a Dockerfile and all files it copies. The build fails if parity is lost."""
    from exporter.deploy import docker

    _show(docker.deploy(bundle, _verified(bundle, trust), variant, out, runtime, ops_libs), out)
    click.echo(f"Next: docker build {shlex.quote(str(out))}")


def _verified(bundle: Path, trust: dict[str, Any]) -> Manifest:
    """Return the manifest, if every file of the bundle matches every record of it, and the required signature."""
    from exporter.bundle import integrity

    return integrity.whole(bundle, _bundle.trusted(trust))


def _show(deployment: Deployment, out: Path) -> None:
    """Print what was made, its size, and its largest files with their paths in it."""
    from exporter.report.rows import size_of

    largest = sorted(deployment.files, key=lambda file: -file.bytes)[:2]
    sizes = ", ".join(f"{file.path} {size_of(file.bytes)}" for file in largest)
    click.echo(f"{out}: {deployment.variant}, {size_of(deployment.bytes)} ({sizes})")
    if deployment.parity:
        click.echo(f"Checked there: {deployment.parity.verdict}, {deployment.parity.cases} cases.")
