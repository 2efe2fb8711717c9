"""Stage a bundle beside its destination, and publish it in one step.

A run writes to `.NAME.staging` next to the bundle and swaps it in at the end, so a run that is killed at any moment
leaves the last good bundle intact. Only one run at a time holds the lock `.NAME.lock`. Where NAME is a symlink, all of
this concerns the directory that it points to, and the link stays.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from exporter.bundle.layout import CACHE, LOGS, MANIFEST, OURS, REASONS, REJECTED, read_manifest, target_of
from exporter.core import filesystem
from exporter.core.errors import ArtifactError, BundleError
from exporter.core.json_codec import to_json
from exporter.core.records import EAGER, Manifest, VariantRecord

RENAME_EXCHANGE = 2
INTERRUPTED, FAILED = ".interrupted", ".failed"  # suffixes of bundles that must not replace another


class Staging:
    """A bundle that is being written. Create it with `stage()`."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out, self.root = out, root
        self.logs = root / LOGS
        self._own, self._place = root.stat(), out

    @property
    def published(self) -> Path | None:
        """The path at which the bundle was published, also if an interrupt came right after that; None before."""
        with suppress(FileNotFoundError):  # moved; the old bundle may have taken its place
            if os.path.samestat(self.root.stat(), self._own):
                return None
        return self._place

    def write(self, manifest: Manifest) -> None:
        """Rewrite the staged manifest atomically."""
        filesystem.write_atomic(self.root / MANIFEST, to_json(manifest) + "\n")

    def reject(self, variant: VariantRecord) -> VariantRecord:
        """Move the files of a variant that failed the check to a folder that is not shipped, and note the reason."""
        if variant.status != "failed" or not variant.files or not variant.sessions:
            return variant
        folder = self.root / REJECTED
        folder.mkdir(exist_ok=True)
        for file in variant.files:
            with suppress(FileNotFoundError):  # an interrupt came when it had been moved
                (self.root / file.path).rename(folder / file.path)
        with (folder / REASONS).open("a", encoding="utf-8") as reasons:
            names = ", ".join(file.path for file in variant.files)
            reasons.write(f"{names}: {variant.name} failed at {variant.stage}: {variant.reason}\n")
        moved = tuple(replace(file, path=f"{REJECTED}/{file.path}") for file in variant.files)
        return replace(variant, artifact=None, companions=(), rejected=moved)

    def publish(self) -> Path:
        """Publish the staged bundle and return its path.

        If foreign files have appeared there, publishes it beside them, and raises BundleError with its path.
        """
        try:
            refuse_foreign(self.out)
        except BundleError as error:
            place = self.publish_beside(FAILED)
            raise BundleError(f"{error}; the new bundle is in {place}", error.remedy) from error
        return self._swap(self.out)

    def publish_beside(self, ending: str) -> Path:
        """Publish a bundle that must not replace another one: see `spare`."""
        _restore(destination(self.out))
        place = spare(self.out, ending)
        refuse_foreign(place)
        return self._swap(place)

    def _swap(self, place: Path) -> Path:
        self._place = place
        return swap(self.root, place)


def spare(out: Path, ending: str) -> Path:
    """Return a path for a bundle that must not replace another: `out` if nothing is there, else with the suffix.

    The suffix is INTERRUPTED for a run that did not finish, and FAILED for one in which something failed.
    """
    place = destination(out)
    with suppress(OSError):
        if not place.exists() or not any(place.iterdir()):
            return out
    return place.with_name(place.name + ending)


def destination(out: Path) -> Path:
    """Return the absolute path of the directory that `out` is or, as a symlink, points to."""
    return Path(os.path.realpath(out)) if out.is_symlink() else out.absolute()


def lost(out: Path, made: Manifest) -> tuple[str, ...]:
    """Return the variants that pass in the existing bundle and would be lost by publishing a run with failures.

    A run in which every requested variant passed loses nothing, because the other variants were not requested.
    """
    passed = {variant.name: variant.status == "passed" for variant in made.variants if variant.name != EAGER}
    if all(passed.values()):
        return ()
    with suppress(ArtifactError):  # an invalid bundle has nothing to lose
        held = read_manifest(out).variants
        return tuple(v.name for v in held if v.name != EAGER and v.status == "passed" and not passed.get(v.name))
    return ()


@contextmanager
def stage(out: Path) -> Iterator[Staging]:
    """Lock `out` and yield a staging directory. Raises BundleError if it is foreign, locked or not writable."""
    out = out.absolute()
    with staged(out, refuse_foreign) as root:
        (root / LOGS).mkdir()
        yield Staging(out, root)


@contextmanager
def staged(out: Path, refuse: Callable[[Path], None]) -> Iterator[Path]:
    """Lock the absolute path `out`, unless `refuse` raises for it, and yield an empty directory beside its destination.

    Raises BundleError if what is there could not be replaced.
    """
    refuse(out)
    place = destination(out)
    root = place.with_name(f".{place.name}.staging")
    lock = place.with_name(f".{place.name}.lock")
    with filesystem.explained(out):
        filesystem.require_removable(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        with filesystem.locked(lock, out):
            try:
                _restore(place)
                _clear(root)
                root.mkdir()
                filesystem.probe_space(root)
                yield root
            finally:
                with suppress(OSError):
                    filesystem.remove_tree(root)


def refuse_foreign(out: Path) -> None:
    """Raise BundleError if a bundle would replace files that exporter did not write, or cannot replace `out`."""
    require_replaceable(out)
    try:
        held = {entry.name for entry in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise filesystem.error(error, out) from error
    if not held:
        return
    if MANIFEST not in held:
        raise BundleError(f"{out} contains files but is not a bundle", "give an empty or new directory as --out")
    foreign = held - OURS - _recorded(out)
    if foreign:
        raise BundleError(
            f"{out} contains {', '.join(sorted(foreign)[:3])}, which exporter did not write and would replace",
            "move them, or give another --out",
        )


def require_replaceable(out: Path) -> None:
    """Raise BundleError if `out` exists but is not a directory, or if it is a mount point.

    The kernel refuses to rename a mount point, so nothing can be swapped with it.
    """
    place = destination(out)
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise BundleError(f"{out} is not a directory", "give another directory")
    if filesystem.is_mount_point(place):
        raise BundleError(
            f"{out} is a mount point, which cannot be replaced", f"give a directory inside it, such as {out / 'model'}"
        )


def _recorded(out: Path) -> set[str]:
    with suppress(ArtifactError):
        manifest = read_manifest(out)
        return {file.path for variant in manifest.variants for file in variant.files}
    # Without a valid manifest:
    return {file.name for file in out.iterdir() if target_of(file.name) or file.name.endswith(CACHE)}


def swap(staged: Path, out: Path) -> Path:
    """Move a staged directory to the destination of `out`, in one step if the file system can; return `out`.

    Everything is synced to disk before, so a loss of power leaves either the old or the new directory complete.
    """
    place = destination(out)
    filesystem.sync_tree(staged)
    if not place.exists():
        staged.rename(place)
    elif not _exchange(staged, place):  # unsupported: for a moment there is no bundle
        old = _aside(place)
        _clear(old)
        place.rename(old)
        staged.rename(place)
        with suppress(OSError):
            filesystem.remove_tree(old)
    filesystem.sync(place.parent)
    return out


def _aside(place: Path) -> Path:
    """Return the temporary path of a bundle that is being replaced."""
    return place.with_name(f".{place.name}.old")


def _restore(place: Path) -> None:
    """Restore a bundle that a killed run had moved aside."""
    old = _aside(place)
    if old.exists() and not place.exists():
        old.rename(place)
    _clear(old)


def _clear(left: Path) -> None:
    """Remove a directory that an earlier run left. Raises BundleError if that is not possible."""
    try:
        filesystem.remove_tree(left)
    except OSError as error:
        raise BundleError(
            f"{left}, which an earlier run left, cannot be removed: {error.strerror}",
            "remove it as its owner, or give another --out",
        ) from error


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories atomically (renameat2 on Linux); return whether that worked."""
    with suppress(AttributeError, OSError):
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        at_cwd = -100
        return bool(renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), RENAME_EXCHANGE) == 0)
    return False
