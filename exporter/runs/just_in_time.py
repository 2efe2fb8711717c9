"""Sessions without an artifact: eager, and variants compiled in the process that runs them, with their cache."""

from __future__ import annotations

import contextlib
import functools
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from exporter import targets
from exporter.bundle import layout
from exporter.core.records import ArtifactRecord, SessionRecord, VariantRecord
from exporter.runs.session_checks import Opener
from exporter.workers.children import Zygote
from exporter.workers.messages import Job, Prepared
from exporter.workers.session.client import PythonSession, Session

CACHE = "cache"  # the compilers' subdirectory of a session's temporary files


@dataclass(frozen=True)
class Live:
    """Opens the sessions of a variant. `variant` is None for eager, which compiles nothing."""

    record: VariantRecord
    variant: targets.Variant | None
    folder: Path  # the bundle
    job: Job
    prepared: Prepared
    zygote: Zygote
    timeout: float

    def open(self) -> Session:
        """Open a session that finds no cache."""
        return self._open(self._scratch)

    def pack(self) -> tuple[ArtifactRecord, ...]:
        """Pack what the compilers of that session cached into a file of the bundle, if anything; return its record."""
        packed = self.variant is not None and pack_cache(self._scratch / CACHE, self._packed)
        return (layout.record(self._packed),) if packed else ()

    @contextlib.contextmanager
    def cached(self) -> Iterator[Opener]:
        """Yield a function that opens a session with the packed cache and no other."""
        scratch = self._scratch.with_name(f"{self._scratch.name}-cached")
        unpack_cache(self._packed, scratch / CACHE)
        try:
            yield functools.partial(self._open, scratch)
        finally:
            layout.remove(scratch)

    @staticmethod
    def started(cold: SessionRecord, cached: SessionRecord) -> SessionRecord:
        """Return the record of the session that found no cache, with the first call of the one that found it."""
        if cached.status == "passed":
            return replace(cold, cached_call_ms=cached.first_call_ms)
        reason = f"from its cache: {cached.reason}"
        return replace(
            cold, status="failed", stage=cached.stage, reason=reason, remedy=cached.remedy, cause=cached.cause
        )

    def _open(self, scratch: Path) -> Session:
        """Open a session with its temporary files in `scratch`, the compilers' caches included."""
        options = self.job.options
        if self.variant is not None:
            (scratch / CACHE).mkdir(parents=True, exist_ok=True)
            options = replace(options.of(self.variant), scratch=str(scratch), cache=str(scratch / CACHE))
        arguments = {
            "job": replace(self.job, options=options),
            "prepared": self.prepared,
            "target": self.record.target,
            "golden_path": str(self.folder / layout.GOLDEN),
        }
        log = self.folder / self.record.log
        child = self.zygote.spawn(f"{self.record.name} (python)", "exporter.workers.tasks:serve_live", arguments, log)
        return PythonSession(child, self.timeout)

    @property
    def _scratch(self) -> Path:
        return self.job.work / layout.stem(self.record.name)

    @property
    def _packed(self) -> Path:
        return self.folder / f"{layout.stem(self.record.name)}{layout.CACHE}"


def pack_cache(folder: Path, path: Path) -> bool:
    """Pack the compilers' cache directory into one file; return whether it contained anything.

    Skips Triton's part, which contains the path of the directory. Inductor's entries contain the same kernels.
    """
    names = {file: file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()}
    kept = {file: name for file, name in names.items() if name.parts[0] != "triton" and name.suffix != ".lock"}
    if kept:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for file, name in kept.items():
                with suppress(FileNotFoundError):  # a worker's temporary file
                    archive.write(file, name)
    return bool(kept)


def unpack_cache(path: Path, folder: Path) -> None:
    """Unpack a cache directory. It contains pickles and machine code: pass only a file that this run has packed."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
