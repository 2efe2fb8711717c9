"""Compare two shared libraries."""

from __future__ import annotations

import io
from collections.abc import Iterator

from exporter.bundle.differences import _numbers
from exporter.bundle.differences._finding import Finding
from exporter.bundle.differences._generated import NAME

TEXT = range(0x20, 0x7F)  # printable ASCII

SHF_ALLOC, BUILD_ID = 2, ".note.gnu.build-id"  # ELF: the flag of a loaded section; the section with a hash of the file
INDEX = (*range(0x28, 0x30), *range(0x3A, 0x40))  # bytes of an ELF64 header that only describe sections
WEIGHTS = (".lrodata", ".ldata")  # sections in which Inductor puts weights


def compare(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Compare the loaded sections of two shared libraries; everything else is debug information."""
    from elftools.elf.elffile import ELFFile

    try:
        one, other = (ELFFile(io.BytesIO(data)) for data in (old, new))
        segments, twins = ([dict(segment.header) for segment in elf.iter_segments()] for elf in (one, other))
        sections = [[s for s in elf.iter_sections() if s["sh_flags"] & SHF_ALLOC] for elf in (one, other)]
        places = [[(s.name, s["sh_offset"], s["sh_size"]) for s in found] for found in sections]
    except Exception as error:  # whatever a broken library raises
        yield "differs", f"{name}: {error}"
        return
    yield "known places", "debug information and build ID of the library"
    if segments != twins or places[0] != places[1]:
        yield "differs", f"{name}: the sizes or offsets of the sections differ"
        return
    before, after = bytearray(old), bytearray(new)
    for byte in INDEX:
        before[byte] = after[byte] = 0
    for section, start, size in places[0]:
        here = slice(start, start + size)
        if before[here] != after[here]:
            yield _section(name, section, bytes(before[here]), bytes(after[here]))
            before[here] = after[here] = bytes(len(before[here]))
    for segment in segments:
        here = slice(segment["p_offset"], segment["p_offset"] + segment["p_filesz"])
        if segment["p_type"] == "PT_LOAD" and before[here] != after[here]:
            yield "differs", f"{name}: between its sections"


def _section(name: str, section: str, old: bytes, new: bytes) -> Finding:
    """Classify the difference of a loaded section."""
    if section == BUILD_ID:
        return "known places", "debug information and build ID of the library"
    if section in WEIGHTS:
        return _numbers.weights(name, old, new)
    if _masked(old) == _masked(new):
        return "known places", "generated names and folders in the library"
    return "differs", f"{name}: {section}"


def _masked(data: bytes) -> bytes:
    """Mask the text around each generated name and the zeros after it, without moving other bytes."""
    masked = bytearray(data)
    for found in NAME.finditer(data):
        begin, end = found.span()
        while begin > 0 and data[begin - 1] in TEXT:
            begin -= 1
        while end < len(data) and data[end] in TEXT:
            end += 1
        while end < len(data) and data[end] == 0:
            end += 1
        masked[begin:end] = b"\1" * (end - begin)
    return bytes(masked)
