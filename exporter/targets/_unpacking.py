"""Unpack compiled packages into a directory of this process, once for each content; torch's loader always repeats it.

The system keeps a package's library loaded even after it is closed, so each copy would occupy memory and disk until the
process ends. Unused packages are kept without their weights. cpp/src/unpack.cpp does the same.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import os
import shutil
import struct
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from exporter.core.errors import ArtifactError

PREFIX = "exporter-package-"
_DATA = "data"  # the directory with the model, below the archive's top directory
_WEIGHTS = (b".lrodata", b".ldata")  # the sections for weights in inductor's libraries
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)
_PIECE = 1 << 20
_lock = threading.RLock()


@dataclass
class _Slot:
    folder: Path
    users: int = 0


@dataclass
class _Own:
    """What this process has unpacked. A forked process starts a new one."""

    folder: Path
    held: int  # descriptor of the directory, locked while the process lives
    owner: int = field(default_factory=os.getpid)
    slots: dict[tuple[tuple[str, int, int], ...], _Slot] = field(default_factory=dict)


_own: list[_Own] = []


def unpack(package: Path) -> tuple[Path, Callable[[], None]]:
    """Return the directory with the package's `data`, and a function to call once when it is no longer used.

    Raise ArtifactError if a member does not match its CRC-32 or cannot be written.
    """
    with _lock, zipfile.ZipFile(package) as archive:
        members = archive.infolist()
        content = tuple((member.filename, member.file_size, member.CRC) for member in members)
        own = _of_this_process()
        slot = own.slots.setdefault(content, _Slot(own.folder / str(len(own.slots))))
        if not slot.users:
            _write(archive, members, slot.folder, package)
        slot.users += 1
        return slot.folder, functools.partial(_release, slot, own.owner)


def sweep() -> None:
    """Remove the directories left behind by this user's processes that have ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and (held := _lock_folder(entry.path, fcntl.LOCK_NB)) is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(held)


def _of_this_process() -> _Own:
    if not _own or _own[0].owner != os.getpid():
        sweep()
        held = None
        while held is None:  # another process may sweep the directory before it is locked
            folder = tempfile.mkdtemp(prefix=PREFIX)
            held = _lock_folder(folder, 0)
        _own[:] = [_Own(Path(folder), held)]
        atexit.register(_discard, _own[0])
    return _own[0]


def _discard(own: _Own) -> None:
    if own.owner == os.getpid():
        shutil.rmtree(own.folder, ignore_errors=True)


def _lock_folder(folder: str, wait: int) -> int | None:
    """Lock a directory of this user and return its descriptor; None if it is locked, missing or not this user's."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | wait)
            if os.path.samestat(os.fstat(held), os.lstat(folder)):
                return held
    except OSError:
        pass
    os.close(held)
    return None


def _write(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path, package: Path) -> None:
    """Overwrite existing files in place, because a library may be loaded from them."""
    for member in members:
        parts = member.filename.split("/")[1:]
        if parts[:1] != [_DATA] or not parts[-1]:
            continue
        if {"..", "."} & set(parts):
            raise ArtifactError(f"{package}: {member.filename!r} is not a valid name", "export it again")
        path = folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(target, "wb") as file, archive.open(member) as source:
                shutil.copyfileobj(source, file, _PIECE)
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"{package} was altered: {error}", "take a good copy, or export it again") from error
        except OSError as error:
            remedy = "free some space there, or set TMPDIR to another folder"
            raise ArtifactError(f"{package} cannot be unpacked in {folder}: {error.strerror}", remedy) from error


def _release(slot: _Slot, owner: int) -> None:
    with _lock:
        slot.users -= 1
        if slot.users or owner != os.getpid():
            return
        for library in slot.folder.rglob("*.so"):
            with suppress(OSError, struct.error):
                _drop_weights(library)


def _drop_weights(library: Path) -> None:
    """Free the disk space and memory of a library's weights. It stays loaded; unpacking it again makes it run again."""
    page = os.sysconf("SC_PAGESIZE")
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    with library.open("r+b") as file:
        for offset, size in _weights(file.fileno()):
            start, end = -(-offset // page) * page, (offset + size) // page * page
            if start < end:  # no effect on file systems that do not support it
                fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, start, end - start)


def _weights(library: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets and sizes of a library's weight sections and of any data appended to it (see elf(5))."""
    header = os.pread(library, 64, 0)
    if header[:5] != b"\x7fELF\x02":
        return
    table, width, count, names = struct.unpack_from("<Q", header, 40)[0], *struct.unpack_from("<HHH", header, 58)
    sections = [struct.unpack("<IIQQQQIIQQ", os.pread(library, 64, table + i * width)) for i in range(count)]
    end = table + width * count
    for name, kind, _, _, offset, size, *_ in sections:
        if kind == 8 or not size:  # SHT_NOBITS
            continue
        end = max(end, offset + size)
        if os.pread(library, 16, sections[names][4] + name).partition(b"\0")[0] in _WEIGHTS:
            yield offset, size
    if end < (total := os.fstat(library).st_size):
        yield end, total - end
