"""What a bundle becomes where it is served: a folder that runs by itself, a model repository, a build context.

Whatever is taken from the bundle is compared with its recorded hash first. A deployment is staged beside its place and
swapped in; it holds a list of its files, so that the next one replaces it and nothing else.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from exporter._version import __version__
from exporter.bundle import layout, publishing
from exporter.core import filesystem
from exporter.core.errors import ArtifactError, BundleError, UsageError
from exporter.core.json_codec import from_json, to_json
from exporter.core.parity_records import Parity
from exporter.core.records import EAGER, SCHEMA, ArtifactRecord, Manifest, VariantRecord
from exporter.report import summary

MARK = "deployment.json"
Refuse = Callable[[VariantRecord], str]  # why a destination cannot serve a variant; "" where it can


@dataclass(frozen=True)
class Deployment:
    """What a folder was made of; its files by their path in it. `parity` is what the artifact kept there."""

    kind: str
    model: str
    variant: str
    parity: Parity | None = None
    files: tuple[ArtifactRecord, ...] = ()
    exporter: str = __version__
    schema: int = SCHEMA

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.files)


def choose(manifest: Manifest, name: str | None, refuse: Refuse) -> VariantRecord:
    """The variant of this name, else the one that is recommended among those that can be served.

    UsageError, with the reason, where that is none.
    """
    reasons = {v.name: _reason(v, refuse) for v in manifest.variants if v.name != EAGER}
    if name is not None:
        if name not in reasons:
            raise UsageError(f"the bundle has no variant {name!r}", f"it has {', '.join(reasons) or 'none'}")
        if reasons[name]:
            raise UsageError(f"{name} {reasons[name]}", "choose another --variant, or export again")
    fit = tuple(v for v in manifest.variants if reasons.get(v.name) == "" and name in (None, v.name))
    ranked = [choice.variant for choice in summary.choices(replace(manifest, variants=fit))]
    if ranked or len(fit) == 1:
        return (ranked or fit)[0]
    if fit:
        names = ", ".join(v.name for v in fit)
        raise UsageError("no timing tells which artifact to recommend here", f"choose a --variant: {names}")
    said = "; ".join(f"{variant} {reason}" for variant, reason in reasons.items())
    raise UsageError(f"no artifact can be served so: {said or 'the bundle has none'}", "export another target")


def _reason(variant: VariantRecord, refuse: Refuse) -> str:
    if variant.status == "failed":
        return f"failed: {variant.reason}"
    if variant.artifact is None or variant.contract is None:
        return "leaves no artifact"
    return refuse(variant)


def take(place: Path, record: ArtifactRecord, to: Path) -> None:
    """Copy a file of the bundle; ArtifactError when it is not the one that was recorded."""
    layout.verify(place, record)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(place / record.path, to)


def golden(place: Path, manifest: Manifest) -> ArtifactRecord:
    """The record of the bundle's golden; ArtifactError when there is none."""
    if manifest.golden is None:
        raise ArtifactError(f"{place} has no golden: its run ended before making one", "export again")
    return manifest.golden.file


@contextmanager
def staged(out: Path, kind: str) -> Iterator[Path]:
    """An empty folder to fill. BundleError where the place holds anything but a deployment of this kind."""
    with publishing.staged(out.absolute(), functools.partial(_refuse_foreign, kind=kind)) as root:
        yield root


def publish(root: Path, out: Path, deployment: Deployment) -> Deployment:
    """List what was staged and put it in its place; returns the deployment with its files."""
    out = out.absolute()
    files = tuple(replace(layout.record(root / name), path=name) for name in sorted(_files(root)))
    deployment = replace(deployment, files=files)
    filesystem.write_atomic(root / MARK, to_json(deployment) + "\n")
    _refuse_foreign(out, deployment.kind)
    publishing.swap(root, out)
    return deployment


def read(place: Path) -> Deployment | None:
    """The deployment in a folder; None where there is none, ArtifactError when its list is broken."""
    path = place / MARK
    return from_json(Deployment, path.read_bytes()) if path.is_file() else None


def _files(place: Path) -> set[str]:
    found = place.rglob("*") if place.is_dir() else ()
    return {str(path.relative_to(place)) for path in found if path.is_symlink() or not path.is_dir()}


def _refuse_foreign(out: Path, kind: str) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BundleError(f"{out} is not a directory", "give another place")
    held = _files(out)
    if not held:
        return
    deployment = read(out)
    if deployment is None or deployment.kind != kind:
        raise BundleError(f"{out} holds files, but no deployment for {kind}", "give an empty or a new directory")
    if foreign := held - {MARK, *(file.path for file in deployment.files)}:
        raise BundleError(
            f"{out} holds {', '.join(sorted(foreign)[:3])}, which exporter did not write and would replace",
            "move them, or give another place",
        )
