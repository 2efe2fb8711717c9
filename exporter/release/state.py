"""Record the finished steps of a release, with their keys, in `release.json`, which is replaced atomically."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.bundle import checksums, integrity, layout
from exporter.core import filesystem
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import from_json, to_json
from exporter.core.records import SCHEMA, Manifest
from exporter.release.plan import Step

NAME = "release.json"


@dataclass(frozen=True)
class Finished:
    """A finished step: its key (see `keys`) and the hash of its bundle's manifest."""

    key: str
    manifest: str


@dataclass(frozen=True)
class Record:
    """The content of `release.json`."""

    steps: dict[str, Finished]
    schema: int = SCHEMA


class Journal:
    """The finished steps of the release in a directory."""

    def __init__(self, out: Path) -> None:
        """Read `release.json` if it exists. Raises ArtifactError if it cannot be read."""
        self._path = out / NAME
        self._record = Record({})
        if self._path.exists():
            try:
                self._record = from_json(Record, self._path.read_bytes())
            except OSError as error:
                raise ArtifactError(f"{self._path} cannot be read: {error.strerror}", "change its owner") from error
            except ArtifactError as error:
                remedy = error.remedy or "remove it; then every step runs again"
                raise ArtifactError(f"{self._path}: {error}", remedy) from error

    def finished(self, step: Step, key: str) -> Manifest | None:
        """Return the manifest of a step if its key is unchanged and its bundle matches every hash, else None."""
        known = self._record.steps.get(step.name)
        place = step.request.out
        if known is None or known.key != key:
            return None
        try:
            if checksums.of(place / layout.MANIFEST) != known.manifest:
                return None
            return integrity.whole(place)
        except (ArtifactError, OSError):
            return None

    def keep(self, step: Step, key: str) -> None:
        """Record a step whose bundle is in place, with the key computed before it ran."""
        manifest = checksums.of(step.request.out / layout.MANIFEST)
        self._write(self._record.steps | {step.name: Finished(key, manifest)})

    def forget(self, steps: Iterable[Step]) -> None:
        """Remove these steps from the record, so that they run again."""
        names = {step.name for step in steps}
        self._write({name: step for name, step in self._record.steps.items() if name not in names})

    def _write(self, steps: dict[str, Finished]) -> None:
        self._record = replace(self._record, steps=dict(sorted(steps.items())))
        filesystem.write_atomic(self._path, to_json(self._record) + "\n")
