"""Map the weights of a compiled package from its archive: private to the process, without a copy.

cpp/src/weights.cpp does the same. `_weights` writes such packages; older ones contain their weights in the library.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import struct
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from exporter.core.errors import ArtifactError

if TYPE_CHECKING:
    import torch

INDEX, BLOB = "_weights.json", "_weights.blob"
PLACE = "in"  # in an index: the model in whose blob a constant is, if that is another one
SHARED = "model"  # the only one that others use weights of
ALIGNMENT = 64  # of each weight, in bytes
REMEDY = "take a good copy, or export it again"
_HEADER = 30  # size of a member's own header, without names
_NONE, _FIXED, _NORESERVE = 0, 0x10, 0x4000  # protection and flags of mmap(2)


def is_mapped(member: zipfile.ZipInfo, names: Sequence[str]) -> bool:
    """Return whether a member of a package is weights that `Weights` maps, so that they need not be unpacked."""
    stored = member.compress_type == zipfile.ZIP_STORED
    return stored and member.filename.endswith(BLOB) and member.filename.removesuffix(BLOB) + INDEX in names


@dataclass(frozen=True)
class Blob:
    """The weights of one model in a package, as the archive's directory and their index describe them."""

    package: Path
    offset: int  # in the file
    size: int
    crc: int
    index: tuple[dict[str, Any], ...]

    @property
    def start(self) -> int:
        """The offset in its first page; 0 if the weights are not aligned and must be read."""
        return 0 if self.offset % ALIGNMENT else self.offset % mmap.PAGESIZE


def find(package: Path, model: str) -> Blob | None:
    """Return the weights of a model; None if its library contains them. Raise ArtifactError for an altered index."""
    here = f"/data/aotinductor/{model}/"
    with zipfile.ZipFile(package) as archive, package.open("rb") as file:
        names = archive.namelist()
        indexes = [name for name in names if here in name and name.endswith(INDEX)]
        blobs = [one for one in archive.infolist() if here in one.filename and is_mapped(one, names)]
        if not indexes:
            return None
        try:
            index = tuple(json.loads(archive.read(indexes[0]))["constants"])
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"{package} was altered: {error}", REMEDY) from error
        if not blobs:  # all are in another model's
            return Blob(package, 0, 0, 0, index)
        (blob, *_) = blobs
        file.seek(blob.header_offset)
        header = file.read(_HEADER)
        offset = blob.header_offset + _HEADER + sum(struct.unpack_from("<HH", header, 26))
        return Blob(package, offset, blob.file_size, blob.CRC, index)


class Weights:
    """Tensors at fixed addresses, which are filled while a model uses them and cost nothing otherwise."""

    def __init__(self, blob: Blob, shared: Weights | None = None) -> None:
        """Reserve the addresses. `shared` has the constants that the index places in another model's blob.

        Raise ArtifactError for an index that does not fit.
        """
        self._length, start = blob.start + max(blob.size, 1), blob.start
        self._region = _map(None, self._length, _NONE, mmap.MAP_ANONYMOUS)
        self._data, self._size = self._region + start, blob.size
        try:
            self.tensors = {entry["name"]: self._holder(entry, shared)._tensor(entry) for entry in blob.index}
        except (AttributeError, KeyError, TypeError, ValueError, ctypes.ArgumentError) as error:
            raise ArtifactError(f"{blob.package} is broken: {INDEX}: {error}", "export it again") from error

    @property
    def address(self) -> int:
        """Where the tensors are."""
        return self._data

    def _holder(self, entry: dict[str, Any], shared: Weights | None) -> Weights:
        """Return the weights that an entry of the index is in. Raise ValueError if they are not open."""
        if PLACE not in entry:
            return self
        if shared is None or entry[PLACE] != SHARED:
            raise ValueError(f"{entry['name']} is in the blob of {entry[PLACE]}, which is not open")
        return shared

    def _tensor(self, entry: dict[str, Any]) -> torch.Tensor:
        return _tensor(entry, self._data, self._size)

    def fill(self, blob: Blob) -> None:
        """Map the weights, which have the same size and start as the first. Raise ArtifactError for a wrong CRC-32."""
        if not blob.size:
            return
        data = (ctypes.c_char * blob.size).from_address(self._data)
        with blob.package.open("rb") as file:
            if not self._maps(file, blob):
                self._allow(mmap.MAP_ANONYMOUS)
                file.seek(blob.offset)
                file.readinto(data)
        if zlib.crc32(data) != blob.crc:
            self.drop()
            raise ArtifactError(f"{blob.package} was altered: the CRC-32 of its weights differs", REMEDY)

    def _maps(self, file: BinaryIO, blob: Blob) -> bool:
        """Map the file, unless the weights are not aligned or the file system cannot map."""
        if blob.offset % ALIGNMENT:
            return False
        with suppress(OSError):
            self._allow(_NORESERVE, file.fileno(), blob.offset - blob.start)
            return True
        return False

    def _allow(self, flags: int, file: int = -1, offset: int = 0) -> None:
        readable = mmap.PROT_READ | mmap.PROT_WRITE
        _map(self._region, self._length, readable, flags | _FIXED, file, offset)

    def drop(self) -> None:
        """Free the memory, and the file."""
        _map(self._region, self._length, _NONE, mmap.MAP_ANONYMOUS | _FIXED)


def _map(address: int | None, length: int, protection: int, flags: int, file: int = -1, offset: int = 0) -> int:
    """Call mmap(2). Python's module cannot choose the address."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    found: int = call(address, length, protection, flags | mmap.MAP_PRIVATE, file, offset)
    if found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "the weights cannot be mapped")
    return found


def _tensor(entry: dict[str, Any], address: int, size: int) -> torch.Tensor:
    """Return the tensor that the index describes. Raise ValueError if it is not in the blob."""
    import torch

    shape, stride = entry["shape"], entry["stride"]
    packed = bytes(entry.get("packed", ()))
    offset, length = entry["offset"], entry["bytes"]
    dtype: torch.dtype = getattr(torch, entry["dtype"])
    last = entry["start"] + sum((count - 1) * step for count, step in zip(shape, stride, strict=True))
    within = packed or 0 in shape or last < length // dtype.itemsize
    positive = min(entry["start"], offset, length, *shape, *stride) >= 0
    if not (positive and within and offset + length <= size and offset % ALIGNMENT == 0):
        raise ValueError(f"{entry['name']} is not in the file")
    numbers = ctypes.c_int64 * len(shape)
    handle = ctypes.c_void_p()
    shim = _shim()
    failed = shim.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(address + offset), ctypes.c_int64(len(shape)), numbers(*shape), numbers(*stride),
        ctypes.c_int64(entry["start"]), getattr(shim, f"aoti_torch_dtype_{entry['dtype']}")(),
        shim.aoti_torch_device_type_cpu(), 0, ctypes.byref(handle),
        shim.aoti_torch_layout__mkldnn() if packed else shim.aoti_torch_layout_strided(),
        packed, ctypes.c_int64(len(packed)),
    )  # fmt: skip
    if failed:
        raise ValueError(f"{entry['name']} is not a tensor")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    made: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(handle, None, None))
    return made


@functools.cache
def _shim() -> ctypes.CDLL:
    """Return torch's library with the C interface of compiled packages; Python's lacks packed tensors."""
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
