"""Where a bundle is made: beside its place, and put there in one step.

A run writes to `.NAME.staging` next to the bundle and swaps it in when it is done, so that a run that is killed at any
moment leaves the last good bundle as it was. One run at a time holds the lock `.NAME.lock`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from exporter.bundle import CACHE, FILES, LOGS, MANIFEST, NEW, OURS, read_manifest
from exporter.errors import ArtifactError, BundleError
from exporter.records import Manifest
from exporter.serialization import to_json

RENAME_EXCHANGE = 2


class Staging:
    """A bundle in the making. Use `stage()`."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out, self.root = out, root
        self.logs = root / LOGS

    def write(self, manifest: Manifest) -> None:
        """Rewrite the staged manifest atomically."""
        write_atomic(self.root / MANIFEST, to_json(manifest) + "\n")

    def publish(self) -> Path:
        """Put the staged bundle in its place; returns the place. BundleError when foreign files have come there."""
        refuse_foreign(self.out)
        return swap(self.root, self.out)

    def publish_interrupted(self) -> Path:
        """Keep what an interrupted run finished: in the bundle's place when that is free, else in NAME.interrupted."""
        place = spare(self.out)
        refuse_foreign(place)
        return swap(self.root, place)


def spare(out: Path) -> Path:
    """Where a bundle goes that must not take another's place: `out` when that is free, else NAME.interrupted."""
    return out.with_name(out.name + ".interrupted") if (out / MANIFEST).exists() else out


@contextmanager
def stage(out: Path) -> Iterator[Staging]:
    """Lock the place `out` and give a staging directory. BundleError when it is foreign, locked or unwritable."""
    out = out.absolute()
    with staged(out, refuse_foreign) as root:
        (root / LOGS).mkdir()
        yield Staging(out, root)


@contextmanager
def staged(out: Path, refuse: Callable[[Path], None]) -> Iterator[Path]:
    """Lock the place `out`, an absolute path that `refuse` lets pass, and give an empty directory beside it."""
    refuse(out)
    root = out.with_name(f".{out.name}.staging")
    lock = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, out):
            try:
                _restore(out)
                shutil.rmtree(root, ignore_errors=True)
                root.mkdir()
                probe_space(root)
                yield root
            finally:
                shutil.rmtree(root, ignore_errors=True)
    except OSError as error:
        raise disk_error(error, out) from error


@contextmanager
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock file of `out`, and remove it in the end. BundleError when another process holds it."""
    while True:
        with lock.open("a+") as held:
            _lock(held, out)
            if not _is_still(lock, held):
                continue  # its last owner removed it after we opened it: this lock keeps nobody out
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_still(path: Path, held: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(held.fileno()))
    except FileNotFoundError:
        return False


def _lock(held: IO[str], out: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.seek(0)
        raise BundleError(
            f"{out} is in use by another run (process {held.read().strip() or 'unknown'})",
            "wait for it, or give another --out",
        ) from None
    held.truncate(0)
    held.write(str(os.getpid()))
    held.flush()


def probe_space(root: Path) -> None:
    """OSError where not even a megabyte can be written."""
    probe = root / ".probe"
    probe.write_bytes(b"\0" * (1 << 20))
    probe.unlink()


def disk_error(error: OSError, out: Path) -> BundleError:
    """The user's words for what the file system said."""
    place = error.filename or out
    known = {
        errno.ENOSPC: ("the disk is full", "free some space, or give another --out"),
        errno.EDQUOT: ("the disk quota is spent", "free some space, or give another --out"),
        errno.EROFS: ("the file system is read-only", "give another --out"),
        errno.EACCES: ("permission denied", "give another --out, or change its permissions"),
        errno.EPERM: ("not permitted", "give another --out, or change its permissions"),
        errno.ENOTDIR: ("a part of the path is a file", "give another --out"),
        errno.EEXIST: ("there is a file in its place", "give another --out"),
    }
    cause, remedy = known.get(error.errno or 0, (error.strerror or str(error), "give another --out"))
    return BundleError(f"cannot write to {place}: {cause}", remedy)


def refuse_foreign(out: Path) -> None:
    """BundleError where a bundle would replace what exporter did not write."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BundleError(f"{out} is not a directory", "give another --out")
    try:
        held = {entry.name for entry in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise disk_error(error, out) from error
    if not held:
        return
    if MANIFEST not in held:
        raise BundleError(f"{out} holds files, but no bundle", "give an empty or a new directory as --out")
    foreign = held - OURS - _recorded(out)
    if foreign:
        raise BundleError(
            f"{out} holds {', '.join(sorted(foreign)[:3])}, which exporter did not write and would replace",
            "move them, or give another --out",
        )


def _recorded(out: Path) -> set[str]:
    with suppress(ArtifactError):
        manifest = read_manifest(out)
        return {file.path for variant in manifest.variants for file in variant.files}
    return {*FILES, *(file.name for file in out.glob(f"*{CACHE}"))}  # a broken manifest tells nothing


def swap(staged: Path, place: Path) -> Path:
    """Put a staged directory in its place, in one step where the file system can; returns the place."""
    if not place.exists():
        staged.rename(place)
    elif not _exchange(staged, place):  # no such call on this file system: a moment without a bundle
        old = _aside(place)
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
        staged.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    _sync_directory(place.parent)
    return place


def _aside(place: Path) -> Path:
    """Where a bundle waits while another takes its place."""
    return place.with_name(f".{place.name}.old")


def _restore(place: Path) -> None:
    """Put back what a killed run left aside."""
    old = _aside(place)
    if old.exists() and not place.exists():
        old.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories in one step (Linux, renameat2)."""
    with suppress(AttributeError, OSError):
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        at_cwd = -100
        return bool(renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), RENAME_EXCHANGE) == 0)
    return False


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one step."""
    new = path.with_name(path.name + NEW)
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
