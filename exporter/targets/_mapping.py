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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core.errors import ArtifactError

if TYPE_CHECKING:
    import torch

INDEX, BLOB = "_weights.json", "_weights.blob"
ALIGNMENT = 64  # of each weight, in bytes
_HEADER = 30  # size of a member's own header, without names


def is_mapped(member: zipfile.ZipInfo, names: Sequence[str]) -> bool:
    """Return whether a member of a package is weights that `Weights` maps, so that they need not be unpacked."""
    stored = member.compress_type == zipfile.ZIP_STORED
    return stored and member.filename.endswith(BLOB) and member.filename.removesuffix(BLOB) + INDEX in names


class Weights:
    """The weights of one model in a package. They must outlive the model."""

    def __init__(self, package: Path, blob: zipfile.ZipInfo, index: list[dict[str, Any]]) -> None:
        """Map the blob; raise ArtifactError if it does not match its CRC-32 or the index."""
        self._region, start = _region(package, blob)
        first = ctypes.c_char.from_buffer(self._region, start)
        address = ctypes.addressof(first)
        del first  # it would keep the region open
        with memoryview(self._region)[start:] as data:
            if zlib.crc32(data[: blob.file_size]) != blob.CRC:
                raise ArtifactError(f"{package} was altered: Bad CRC-32 for file {blob.filename!r}", REMEDY)
        try:
            self.tensors = {entry["name"]: _tensor(entry, address, blob.file_size) for entry in index}
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{package} is broken: {INDEX}: {error}", "export it again") from error

    def close(self) -> None:
        """Unmap the weights. Torch 2.14 never frees its references to the tensors, a few hundred bytes each."""
        self.tensors.clear()
        self._region.close()


REMEDY = "take a good copy, or export it again"


def weights_of(package: Path, model: str) -> Weights | None:
    """Map the weights of a model; None if its library contains them."""
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        here = f"/data/aotinductor/{model}/"
        blobs = [one for one in archive.infolist() if here in one.filename and is_mapped(one, names)]
        if not blobs or not blobs[0].file_size:
            return None
        try:
            index = json.loads(archive.read(blobs[0].filename.removesuffix(BLOB) + INDEX))["constants"]
        except zipfile.BadZipFile as error:
            raise ArtifactError(f"{package} was altered: {error}", REMEDY) from error
        return Weights(package, blobs[0], index)


def _region(package: Path, blob: zipfile.ZipInfo) -> tuple[mmap.mmap, int]:
    """Return a mapping of a member, and where in it the member begins. What is not aligned is read into memory."""
    with package.open("rb") as file:
        file.seek(blob.header_offset)
        header = file.read(_HEADER)
        offset = blob.header_offset + _HEADER + sum(struct.unpack_from("<HH", header, 26))
        start = offset % mmap.ALLOCATIONGRANULARITY
        if offset % ALIGNMENT == 0:
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            length, offset = start + blob.file_size, offset - start
            return mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE, protection, offset=offset), start
        region = mmap.mmap(-1, blob.file_size)
        file.seek(offset)
        file.readinto(region)
        return region, 0


def _tensor(entry: dict[str, Any], address: int, size: int) -> torch.Tensor:
    """Return the tensor that the index describes. Raise ValueError if it is not in the blob."""
    import torch

    shape, stride = entry["shape"], entry["stride"]
    packed = bytes(entry.get("packed", ()))
    offset, length = entry["offset"], entry["bytes"]
    dtype: torch.dtype = getattr(torch, entry["dtype"])
    last = entry["start"] + sum((count - 1) * step for count, step in zip(shape, stride, strict=True))
    within = packed or 0 in shape or last < length // dtype.itemsize
    if not (within and 0 <= offset <= offset + length <= size and offset % ALIGNMENT == 0):
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
