"""Write files atomically and under a lock, and explain file-system errors to the user.

This file is long because these errors are explained beside the functions that raise them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from exporter.core.errors import BundleError, UsageError

NO_PROCESS = "the system starts no further process or thread"
MORE_PROCESSES = "raise the limit of processes: ulimit -u, or the container's"
LIMITS = {
    errno.EAGAIN: (NO_PROCESS, MORE_PROCESSES),
    errno.EMFILE: ("too many open files", "raise the limit of open files, as with ulimit -n"),
    errno.ENFILE: ("too many files are open on this machine", "close other programs, or raise fs.file-max"),
}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # errors of nothing but writing
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\(\d{3})")  # a space in a path of MOUNTS is \040
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
NEW = ".new"  # suffix of a file that is still being written
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)  # errors for a directory that cannot be synced


@contextmanager
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock file of `out`, and remove it at the end. Raises BundleError if another process holds it."""
    while True:
        with lock.open("a+") as held:
            _lock(held, out)
            if not _is_still(lock, held):
                continue  # its last owner removed it after we opened it, so this lock excludes nobody
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


@contextmanager
def plain(folder: Path) -> Iterator[Path]:
    """Yield a path of the folder that is safe for compilers, shells and C++: a temporary link if its own is not.

    Yields the folder's own path if the temporary directory has no safe path either.
    """
    if _PLAIN.fullmatch(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="exporter-") as place:
        if not _PLAIN.fullmatch(place):
            yield folder
            return
        link = Path(place, "bundle")
        link.symlink_to(folder)
        yield link


def require_directory() -> None:
    """Raise UsageError if the working directory was deleted, because no process can start there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been deleted", "cd to another one") from None


def probe_space(root: Path) -> None:
    """Raise OSError if one MiB cannot be written. Several threads may call this at once."""
    with tempfile.TemporaryFile(dir=root) as probe:
        probe.write(b"\0" * (1 << 20))


def is_full(folder: Path) -> bool:
    """Return whether a MiB cannot be written to the folder because its disk is full."""
    try:
        probe_space(folder)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return False


def is_mount_point(folder: Path) -> bool:
    """Return whether something is mounted at a folder, even another folder of the same file system."""
    real = os.path.realpath(folder)
    return os.path.ismount(real) or real in _mount_points()


def _mount_points() -> set[str]:
    """Return the paths at which something is mounted; none where /proc is missing."""
    with suppress(OSError):
        rows = [row.split(b" ") for row in MOUNTS.read_bytes().split(b"\n") if row]
        return {os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), row[4])) for row in rows}
    return set()


def remove_tree(root: Path) -> None:
    """Remove a directory, if there is one, even if it or a directory in it is write-protected.

    Raises OSError for what cannot be removed.
    """
    if root.is_symlink() or not root.is_dir():
        return
    _unprotect(root)
    for folder, names, _ in os.walk(root):
        for name in names:
            _unprotect(Path(folder, name))
    shutil.rmtree(root)


def _unprotect(folder: Path) -> None:
    with suppress(OSError):  # it belongs to another user, who may let us write to it
        if not folder.is_symlink():
            folder.chmod(folder.stat().st_mode | stat.S_IRWXU)


def link_tree(source: Path, to: Path) -> None:
    """Make a new directory with hard links to all files, or with copies where the file system allows no (more) links.

    Links stay links. Raises OSError for the first file that cannot be written, where shutil.copytree raises a list.
    """
    to.mkdir()
    for entry in source.iterdir():
        new = to / entry.name
        if entry.is_symlink():
            new.symlink_to(entry.readlink())
        elif entry.is_dir():
            link_tree(entry, new)
        else:
            try:
                os.link(str(entry), str(new))
            except OSError:
                shutil.copy2(entry, new)
    shutil.copystat(source, to)


def is_noexec(path: Path) -> bool:
    """Return whether a path is on a mount from which the system loads no libraries and starts no programs."""
    return bool(os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0))


def let_all_read(root: Path) -> None:
    """Let every user read the files in a directory, and run those that their owner may run."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            held = path.stat()
            mode = stat.S_IMODE(held.st_mode)
            wanted = mode | (0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644)
            if mode != wanted and held.st_uid == os.geteuid():  # a link to another user's file stays as it is
                path.chmod(wanted)


def require_removable(root: Path) -> None:
    """Raise BundleError if another user owns a directory under `root` and lets nobody remove what is in it."""
    for folder, names, files in os.walk(root):
        if (names or files) and Path(folder).stat().st_uid != os.geteuid() and not os.access(folder, os.W_OK):
            cause = f"{root} cannot be replaced: {folder} belongs to another user"
            raise BundleError(cause, "change its owner, or give another --out")


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """Raise what `explain` returns in place of an OSError."""
    try:
        yield
    except OSError as error:
        if known := explain(error, out):
            raise known from error
        raise


def explain(raised: OSError, out: Path) -> UsageError | None:
    """Explain an error of a run that writes to `out`; return None for one that may be a bug.

    It is a BundleError if something cannot be written, or if a limit of the system is reached.
    """
    if raised.errno in LIMITS or raised.errno in NO_ROOM or _is_own(raised.filename, out):
        return error(raised, out)
    if known := users_error(raised):
        return known
    if raised.errno is None or not (raised.filename or raised.errno == errno.EIO):
        return None
    return UsageError(f"cannot access {raised.filename or 'a file'}: {raised.strerror}", "mend that, and run it again")


def _is_own(path: object, out: Path) -> bool:
    """Return whether a run that writes to `out` writes to this path: in it, beside it, or to make its parents."""
    if not isinstance(path, (str, bytes)):
        return False
    found = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
    for place in (out.absolute(), Path(os.path.realpath(out))):
        beside = [one for one in (found, *found.parents) if one.parent == place.parent]
        names = [one.name == place.name or one.name.startswith(f".{place.name}.") for one in beside]
        if any(names) or found in place.parents:
            return True
    return False


def error(error: OSError, out: Path, instead: str = "give another --out") -> BundleError:
    """Explain an error of writing to `out` to the user, or of a process that the system does not start.

    `instead` is the remedy for a place that cannot be written to.
    """
    if error.errno in LIMITS:
        return BundleError(*LIMITS[error.errno])
    place = error.filename or out
    if _is_temporary(place) and not _is_temporary(out):
        instead = "set TMPDIR to another folder"
    known = {
        errno.ENOSPC: ("the disk is full", f"free some space, or {instead}"),
        errno.EDQUOT: ("the disk quota is exhausted", f"free some space, or {instead}"),
        errno.EROFS: ("the file system is read-only", instead),
        errno.EACCES: ("permission denied", f"{instead}, or change its permissions"),
        errno.EPERM: ("not permitted", f"{instead}, or change its permissions"),
        errno.ENOTDIR: ("a part of the path is a file", instead),
        errno.EEXIST: ("a file is in its place", instead),
        errno.EISDIR: ("a directory is in its place", instead),
        errno.EFBIG: ("it exceeds the limit of file sizes", "raise the limit, as with ulimit -f"),
    }
    cause, remedy = known.get(error.errno or 0, (error.strerror or str(error), instead))
    return BundleError(f"cannot write to {place}: {cause}", remedy)


def users_error(error: OSError) -> UsageError | None:
    """Explain an error that the user can mend wherever it occurs; return None for any other error."""
    if error.errno == errno.ENAMETOOLONG:
        return UsageError(f"a path is too long: {str(error.filename or '')[:80]}…", "give shorter names")
    return temporary_error(error)


def temporary_error(error: OSError) -> BundleError | None:
    """Explain an error of a temporary folder that is full or not writable; return None for any other error."""
    unusable = error.errno == errno.ENOENT and "No usable temporary directory" in str(error)
    unread = error.errno == errno.EACCES and error.filename and os.path.isfile(error.filename)  # noqa: PTH113
    if unusable or (error.errno in FULL and error.filename and _is_temporary(error.filename) and not unread):
        cause = "no temporary folder is writable" if unusable else f"{error.filename}: {error.strerror}"
        return BundleError(f"cannot write temporary files: {cause}", "free some space, or set TMPDIR to another folder")
    return None


def _is_temporary(place: str | Path) -> bool:
    with suppress(OSError):  # there is no temporary folder
        return Path(os.fsdecode(place)).absolute().is_relative_to(tempfile.gettempdir())
    return False


def write_atomic(path: Path, text: str) -> None:
    """Replace a file atomically and sync it to disk. The text is first written to the name + NEW."""
    new = path.with_name(path.name + NEW)
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync(path.parent)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is complete and synced to disk.

    For paths that the user gives: a link stays, and its target is replaced; a pipe or a device is written to directly.
    Raises OSError, also if `path` is a directory.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    new = own_new(target)
    try:
        with new.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
        sync(target.parent)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def own_new(path: Path) -> Path:
    """Return a temporary name for `path` that is unique to this process, for use without a lock."""
    return path.with_name(f".{path.name}.{os.getpid()}{NEW}")


def sync(path: Path) -> None:
    """Sync a file to disk, or the entries of a directory if the file system supports that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC or not path.is_dir():
            raise


def sync_tree(root: Path) -> None:
    """Sync a directory and all files in it to disk, so that they survive a loss of power."""
    for folder, _, names in os.walk(root):
        for name in names:
            if (Path(folder) / name).is_file() and not (Path(folder) / name).is_symlink():
                sync(Path(folder) / name)
        sync(Path(folder))
