"""Deploy a bundle: as a self-contained folder, as a model in a repository, or as a build context.

Every file taken from the bundle is first verified against its recorded hash. A deployment is staged beside its
destination and then swapped in. It lists its own files, so that the next deployment replaces those and nothing else.
A server runs as another user, so everybody may read a deployment, whatever the umask and the bundle's permissions.
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
from exporter.core.records import EAGER, SCHEMA, UNCHECKED, ArtifactRecord, Manifest, VariantRecord
from exporter.report import summary

MARK = "deployment.json"
OTHER = "export another target"
Refuse = Callable[[VariantRecord], str]  # returns why a destination cannot serve a variant, or ""


@dataclass(frozen=True)
class Deployment:
    """The origin and files of a deployment. Paths are relative to its folder; `parity` was measured in that folder."""

    kind: str
    model: str
    variant: str
    parity: Parity | None = None
    files: tuple[ArtifactRecord, ...] = ()
    exporter: str = __version__
    schema: int = SCHEMA

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(file.bytes for file in self.files)


def choose(manifest: Manifest, name: str | None, refuse: Refuse, target: str = "") -> VariantRecord:
    """Return the variant with this name, or without a name the recommended one among those that can be served.

    Raises UsageError, with the reason, if there is none. `target` is set if no other target can be served.
    """
    lacks = target and all(variant.target != target for variant in manifest.variants)
    export = f"export with --targets {target}" if lacks else "mend that and export again" if target else OTHER
    reasons = {v.name: _reason(v, refuse) for v in manifest.variants if v.name != EAGER}
    if name is not None:
        if name not in reasons:
            raise UsageError(f"the bundle has no variant {name!r}", f"it has {', '.join(reasons) or 'none'}")
        if reasons[name]:
            others = [variant for variant, reason in reasons.items() if not reason]
            raise UsageError(f"{name} {reasons[name]}", f"give --variant {' or '.join(others)}" if others else export)
    fit = tuple(v for v in manifest.variants if reasons.get(v.name) == "" and name in (None, v.name))
    if len(fit) == 1:
        return fit[0]
    if fit:
        asked, names = replace(manifest, variants=fit), " or ".join(v.name for v in fit)
        if best := summary.recommended(asked):
            return best.variant
        if summary.choices(asked):
            cause = "the comparison of the artifacts is inconclusive: other programs disturbed the timing"
            raise UsageError(cause, f"give --variant {names}; or time again: {summary.BENCH}")
        raise UsageError("there are no timings to choose an artifact by", f"give --variant {names}")
    causes = "; ".join(f"{variant} {reason}" for variant, reason in reasons.items())
    raise UsageError(f"no artifact can be deployed here: {causes or 'the bundle has none'}", export)


def _reason(variant: VariantRecord, refuse: Refuse) -> str:
    if variant.status == "failed":
        return f"{variant.failure if variant.stage == UNCHECKED else 'failed'}: {variant.reason}"
    if variant.artifact is None or variant.contract is None:
        return "leaves no artifact"
    return refuse(variant)


def take(place: Path, record: ArtifactRecord, to: Path) -> None:
    """Copy a file of the bundle. Raises ArtifactError if it differs from its record."""
    layout.verify(place, record)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(place / record.path, to)


def golden(place: Path, manifest: Manifest) -> ArtifactRecord:
    """Return the record of the bundle's golden. Raises ArtifactError if there is none."""
    if manifest.golden is None:
        raise ArtifactError(f"{place} has no golden: its run ended before making one", "export again")
    return manifest.golden.file


@contextmanager
def staged(out: Path, kind: str) -> Iterator[Path]:
    """Yield an empty folder to fill. Raises BundleError if `out` holds anything but a deployment of this kind."""
    with publishing.staged(out.absolute(), functools.partial(_refuse_foreign, kind=kind)) as root:
        yield root


def publish(root: Path, out: Path, deployment: Deployment) -> Deployment:
    """List the staged files, swap the folder into place and return the deployment with its files."""
    out = out.absolute()
    files = tuple(replace(layout.record(root / name), path=name) for name in sorted(_files(root)))
    deployment = replace(deployment, files=files)
    filesystem.write_atomic(root / MARK, to_json(deployment) + "\n")
    _refuse_foreign(out, deployment.kind)
    filesystem.let_all_read(root)
    publishing.swap(root, out)
    return deployment


def read(place: Path) -> Deployment | None:
    """Return the deployment in a folder, or None. Raises ArtifactError if its record is invalid."""
    path = place / MARK
    return from_json(Deployment, path.read_bytes()) if path.is_file() else None


def _files(place: Path) -> set[str]:
    found = place.rglob("*") if place.is_dir() else ()
    return {str(path.relative_to(place)) for path in found if path.is_symlink() or not path.is_dir()}


def _refuse_foreign(out: Path, kind: str) -> None:
    publishing.require_replaceable(out)
    held = _files(publishing.destination(out))
    if not held:
        return
    deployment = read(out)
    if deployment is None or deployment.kind != kind:
        raise BundleError(f"{out} holds files, but no deployment for {kind}", "choose an empty or new directory")
    if foreign := held - {MARK, *(file.path for file in deployment.files)}:
        raise BundleError(
            f"{out} holds {', '.join(sorted(foreign)[:3])}, which exporter did not write and would replace",
            "move them, or choose another directory",
        )
