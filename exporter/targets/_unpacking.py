"""Unpack compiled packages into a directory of this process while torch loads them; torch's loader always keeps a copy.

The system keeps a package's library loaded even after it is closed, so each copy would occupy memory and disk until the
process ends. Each library is therefore kept once for each content, as a file without a name, and unused ones without
their weights. cpp/src/unpack.cpp does the same.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import shutil
import struct
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from exporter.core import filesystem
from exporter.core.errors import ArtifactError
from exporter.targets import _mapping

PREFIX = "exporter-package-"
_DATA = "data"  # the directory with the model, below the archive's top directory
_WEIGHTS = (b".lrodata", b".ldata")  # the sections for weights in inductor's libraries
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)
_PIECE = 1 << 20
_lock = threading.RLock()


@dataclass
class _Slot:
    libraries: dict[str, int] = field(default_factory=dict)  # descriptors of the files, by their names in the package
    users: int = 0


@dataclass
class _Own:
    """What this process has unpacked. A forked process starts a new one."""

    owner: int = field(default_factory=os.getpid)
    slots: dict[tuple[tuple[str, int, int], ...], _Slot] = field(default_factory=dict)
    folder: Path | None = None  # while a package is being loaded
    held: int = -1  # descriptor of the directory, locked while it exists
    made: int = 0  # number of directories below it so far

    def new_folder(self) -> Path:
        """Return the path for a directory. Raise ArtifactError if none can be locked."""
        while self.folder is None:  # another process may sweep the directory before it is locked
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            if (held := _lock_folder(str(folder), 0)) is not None:
                self.folder, self.held = folder, held
                break
            with suppress(FileNotFoundError):
                folder.rmdir()
                raise ArtifactError(f"cannot lock a folder in {folder.parent}", "set TMPDIR to another folder")
        if filesystem.is_noexec(self.folder):
            raise ArtifactError(f"{self.folder.parent} is mounted with noexec", "set TMPDIR to another folder")
        self.made += 1
        return self.folder / str(self.made)

    def remove(self, folder: Path) -> None:
        """Remove a directory, and the one of this process with the last of them."""
        if self.owner != os.getpid() or self.folder is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # it is not empty
            self.folder.rmdir()
            os.close(self.held)
            self.folder = None


_own: list[_Own] = []


class Unpacked:
    """A package in a directory, in use until `release` is called."""

    def __init__(self, own: _Own, package: Path) -> None:
        """Unpack the package. Raise ArtifactError if a member does not match its CRC-32 or cannot be written."""
        self._own, self.folder = own, own.new_folder()
        try:
            with zipfile.ZipFile(package) as archive:
                self._slot = own.slots.setdefault(_content(archive), _Slot())
                _write(archive, self._slot, self.folder, package)
        except BaseException:
            own.remove(self.folder)
            raise
        self._slot.users += 1

    def remove_folder(self) -> None:
        """Remove the directory, once everything in it is loaded. Otherwise `release` does."""
        with _lock:
            self._own.remove(self.folder)

    def release(self) -> None:
        """Free what is no longer used. To be called once."""
        with _lock:
            self._own.remove(self.folder)
            self._slot.users -= 1
            if self._slot.users or self._own.owner != os.getpid():
                return
            for library in self._slot.libraries.values():
                with suppress(OSError, struct.error):
                    _drop_weights(library)


def unpack(package: Path) -> Unpacked:
    """Unpack a package, except weights that can be mapped.

    Raise ArtifactError if a member does not match its CRC-32 or cannot be written.
    """
    with _lock:
        if not _own or _own[0].owner != os.getpid():
            sweep()
            _own[:] = [_Own()]
            atexit.register(_discard, _own[0])
        return Unpacked(_own[0], package)


def sweep() -> None:
    """Remove the directories left behind by this user's processes that have ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and (held := _lock_folder(entry.path, fcntl.LOCK_NB)) is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(held)


def content(package: Path) -> object:
    """Return a key of the names, sizes and CRCs of all members."""
    with zipfile.ZipFile(package) as archive:
        return _content(archive)


def _content(archive: zipfile.ZipFile) -> tuple[tuple[str, int, int], ...]:
    return tuple((member.filename, member.file_size, member.CRC) for member in archive.infolist())


def _discard(own: _Own) -> None:
    if own.owner == os.getpid() and own.folder is not None:
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


def _write(archive: zipfile.ZipFile, slot: _Slot, folder: Path, package: Path) -> None:
    names = archive.namelist()
    for member in archive.infolist():
        parts = member.filename.split("/")[1:]
        if parts[:1] != [_DATA] or not parts[-1] or _mapping.is_mapped(member, names):
            continue
        if {"..", "."} & set(parts):
            raise ArtifactError(f"{package}: {member.filename!r} is not a valid name", "export it again")
        path = folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _place(archive, member, slot, path)
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"{package} was altered: {error}", _mapping.REMEDY) from error
        except OSError as error:
            remedy = "free some space there, or set TMPDIR to another folder"
            raise ArtifactError(f"{package} cannot be unpacked in {folder}: {error.strerror}", remedy) from error


def _place(archive: zipfile.ZipFile, member: zipfile.ZipInfo, slot: _Slot, path: Path) -> None:
    """Write a member to a file. A library that is already loaded is linked, and its file written again if unused."""
    known = slot.libraries.get(member.filename)
    if known is not None:
        if not slot.users:  # its weights were dropped
            _copy(archive, member, known)
        path.symlink_to(f"/proc/self/fd/{known}")
        if path.exists():
            return
        path.unlink()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _copy(archive, member, file)
    except BaseException:
        os.close(file)
        raise
    if path.suffix == ".so":
        slot.libraries[member.filename] = file
    else:
        os.close(file)


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: int) -> None:
    """Overwrite a file in place, because a library may be loaded from it."""
    with os.fdopen(os.dup(file), "r+b") as target, archive.open(member) as source:
        target.seek(0)
        shutil.copyfileobj(source, target, _PIECE)


def _drop_weights(library: int) -> None:
    """Free the disk space and memory of a library's weights. It stays loaded; writing its file makes it run again."""
    page = os.sysconf("SC_PAGESIZE")
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    for offset, size in _weights(library):
        start, end = -(-offset // page) * page, (offset + size) // page * page
        if start < end:  # no effect on file systems that do not support it
            fallocate(library, _PUNCH_HOLE | _KEEP_SIZE, start, end - start)


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
