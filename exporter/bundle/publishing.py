"""Where a bundle is made: beside its place, and put there in one step.

A run writes to `.NAME.staging` next to the bundle and swaps it in when it is done, so that a run that is killed at any
moment leaves the last good bundle as it was. One run at a time holds the lock `.NAME.lock`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from exporter.bundle.layout import CACHE, LOGS, MANIFEST, OURS, REASONS, REJECTED, artifacts, read_manifest
from exporter.core import filesystem
from exporter.core.errors import ArtifactError, BundleError
from exporter.core.json_codec import to_json
from exporter.core.records import EAGER, Manifest, VariantRecord

RENAME_EXCHANGE = 2
INTERRUPTED, FAILED = ".interrupted", ".failed"  # end the names of bundles that must not take another's place


class Staging:
    """A bundle in the making. Use `stage()`."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out, self.root = out, root
        self.logs = root / LOGS

    def write(self, manifest: Manifest) -> None:
        """Rewrite the staged manifest atomically."""
        filesystem.write_atomic(self.root / MANIFEST, to_json(manifest) + "\n")

    def reject(self, variant: VariantRecord) -> VariantRecord:
        """Move the files of a variant that was judged and failed to where nobody ships them from, with the reason."""
        if variant.status != "failed" or not variant.files or not variant.sessions:
            return variant
        folder = self.root / REJECTED
        folder.mkdir(exist_ok=True)
        for file in variant.files:
            (self.root / file.path).rename(folder / file.path)
        with (folder / REASONS).open("a", encoding="utf-8") as reasons:
            names = ", ".join(file.path for file in variant.files)
            reasons.write(f"{names}: {variant.name} failed at {variant.stage}: {variant.reason}\n")
        moved = tuple(replace(file, path=f"{REJECTED}/{file.path}") for file in variant.files)
        return replace(variant, artifact=None, companions=(), rejected=moved)

    def publish(self) -> Path:
        """Put the staged bundle in its place; returns the place. BundleError when foreign files have come there."""
        refuse_foreign(self.out)
        return swap(self.root, self.out)

    def publish_beside(self, ending: str) -> Path:
        """Keep what must not take another bundle's place: see `spare`."""
        place = spare(self.out, ending)
        refuse_foreign(place)
        return swap(self.root, place)


def spare(out: Path, ending: str) -> Path:
    """Where a bundle goes that must not take another's place: `out` when that is free, else its name with the ending.

    That is INTERRUPTED for a run that did not come to its end, FAILED for one in which something failed.
    """
    return out.with_name(out.name + ending) if os.path.lexists(out / MANIFEST) else out


def lost(out: Path, made: Manifest) -> tuple[str, ...]:
    """Variants that pass in the bundle that is there, and would be gone with this run, in which something failed.

    A run in which all passed that was asked for loses nothing: what it leaves out was not asked for.
    """
    passed = {variant.name: variant.status == "passed" for variant in made.variants if variant.name != EAGER}
    if all(passed.values()):
        return ()
    with suppress(ArtifactError):  # a broken bundle has nothing to lose
        held = read_manifest(out).variants
        return tuple(v.name for v in held if v.name != EAGER and v.status == "passed" and not passed.get(v.name))
    return ()


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
        with filesystem.locked(lock, out):
            try:
                _restore(out)
                shutil.rmtree(root, ignore_errors=True)
                root.mkdir()
                filesystem.probe_space(root)
                yield root
            finally:
                shutil.rmtree(root, ignore_errors=True)
    except OSError as error:
        raise filesystem.error(error, out) from error


def refuse_foreign(out: Path) -> None:
    """BundleError where a bundle would replace what exporter did not write."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BundleError(f"{out} is not a directory", "give another --out")
    try:
        held = {entry.name for entry in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise filesystem.error(error, out) from error
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
    return {*artifacts(), *(file.name for file in out.glob(f"*{CACHE}"))}  # a broken manifest tells nothing


def swap(staged: Path, place: Path) -> Path:
    """Put a staged directory in its place, in one step where the file system can; returns the place.

    All of it is on the disk before, so that a loss of power leaves what was there or what is new, as a whole.
    """
    filesystem.sync_tree(staged)
    if not place.exists():
        staged.rename(place)
    elif not _exchange(staged, place):  # no such call on this file system: a moment without a bundle
        old = _aside(place)
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
        staged.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    filesystem.sync(place.parent)
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
