"""Damaged artifacts without a bundle: they are refused with ArtifactError, quickly, whatever they contain."""

from __future__ import annotations

import json
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import exporter
from exporter.core import contract, contract_files
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, ContractError
from exporter.core.expressions import Expression
from exporter.core.json_codec import to_json
from exporter.core.size_range import Range
from exporter.model.capture import Program

FILES = ["trace.pt", "script.pt", "exported.pt2", "model.onnx"]
PAIR = {"ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "mask": torch.ones(2, 3)}


def rewrite(source: Path, to: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the artifact with an edited contract."""
    if source.suffix == ".onnx":
        model = onnx.load(str(source))
        (entry,) = (entry for entry in model.metadata_props if entry.key == "exporter.contract")
        data = json.loads(entry.value)
        change(data)
        entry.value = json.dumps(data)
        onnx.save(model, str(to))
        return to
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(contract_files.RECORD):
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            new.writestr(info, content)
    return to


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("count", [0, 1])
def test_contracts_with_too_few_inputs(made_bundle: Path, tmp_path: Path, file: str, count: int) -> None:
    """A contract without any input is refused too."""
    damaged = rewrite(made_bundle / file, tmp_path / file, lambda data: data.update(inputs=data["inputs"][:count]))
    with pytest.raises(ArtifactError, match=f"takes 2 inputs, but its contract has {count}"):
        exporter.open_artifact(damaged)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("count", [0, 2, 4])
def test_contracts_with_a_wrong_number_of_outputs(made_bundle: Path, tmp_path: Path, file: str, count: int) -> None:
    def change(data: dict[str, Any]) -> None:
        data["outputs"] = (data["outputs"] * 2)[:count]

    artifact = exporter.open_artifact(rewrite(made_bundle / file, tmp_path / file, change))
    with pytest.raises(ArtifactError, match=f"returns 3 outputs, but its contract has {count}"):
        artifact(**PAIR)


@pytest.mark.parametrize("file", FILES)
def test_invalid_contracts_are_refused(made_bundle: Path, tmp_path: Path, file: str) -> None:
    for field, value, said in (
        ("target", "rust", "the target in its contract is unknown"),
        ("schema", 99, "schema 99 is not known"),
        ("inputs", None, "its contract is not a valid Contract"),
    ):
        damaged = rewrite(made_bundle / file, tmp_path / file, lambda data, f=field, v=value: data.update({f: v}))  # type: ignore[misc]
        with pytest.raises(ArtifactError, match=said) as raised:
            exporter.open_artifact(damaged)
        assert file in str(raised.value)


def patched(source: Path, to: Path, offset: int, value: int, member: str) -> Path:
    """Write an archive with another 16-bit value in a member's local header and in its central directory entry."""
    shutil.copy(source, to)
    data = bytearray(to.read_bytes())
    with zipfile.ZipFile(source) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(member))
    struct.pack_into("<H", data, info.header_offset + offset, value)
    at = data.index(info.filename.encode(), archive.start_dir) - zipfile.sizeCentralDir
    struct.pack_into("<H", data, at + offset + 2, value)
    to.write_bytes(data)
    return to


@pytest.mark.parametrize(
    ("offset", "value"), [(6, 1), (8, 99), (8, 14), (8, 8)], ids=["encrypted", "unknown method", "not lzma", "not zip"]
)
@pytest.mark.parametrize("member", ["extra/contract.json", "version", "program"])
@pytest.mark.parametrize("file", FILES[:3])
def test_archive_entries_that_cannot_be_read(
    made_bundle: Path, tmp_path: Path, file: str, offset: int, value: int, member: str
) -> None:
    program = "model.json" if file == "exported.pt2" else "data.pkl"
    damaged = patched(made_bundle / file, tmp_path / file, offset, value, member.replace("program", program))
    if member == contract_files.RECORD:
        with pytest.raises(ArtifactError, match=file):
            exporter.open_artifact(damaged)
        return
    try:  # torch's own reader uses other copies of these fields, so it may still load the artifact
        outputs = exporter.open_artifact(damaged)(**PAIR)
    except ArtifactError:
        return
    assert torch.equal(outputs["pooled"], exporter.open_artifact(made_bundle / file)(**PAIR)["pooled"])


@pytest.mark.parametrize("file", FILES[:3])
def test_a_flipped_bit_in_an_archive_without_a_bundle(made_bundle: Path, tmp_path: Path, file: str) -> None:
    """The bit is in a member's data: torch itself would load it and return different numbers."""
    whole = (made_bundle / file).read_bytes()
    with zipfile.ZipFile(made_bundle / file) as archive:
        members = [info for info in archive.infolist() if info.file_size]
    for info in members:
        at = info.header_offset + zipfile.sizeFileHeader
        extra = struct.unpack_from("<HH", whole, info.header_offset + 26)
        data = bytearray(whole)
        data[at + sum(extra) + info.file_size // 2] ^= 1
        (tmp_path / file).write_bytes(data)
        with pytest.raises(ArtifactError, match="the CRC-32 of"):
            exporter.open_artifact(tmp_path / file)


def test_a_zip_bomb_as_a_contract(made_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever size its header claims, the reader stops at the limit."""
    monkeypatch.setattr(contract_files, "LARGEST", 1 << 20)
    large = tmp_path / "large.pt"
    with zipfile.ZipFile(made_bundle / "trace.pt") as old, zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(contract_files.RECORD):
                content = b" " * (64 << 20) + content
            new.writestr(info.filename, content)
    assert large.stat().st_size < 1 << 20
    started = time.monotonic()
    with pytest.raises(ArtifactError, match="more than 1,048,576 bytes"):
        exporter.open_artifact(large)
    assert time.monotonic() - started < 5


HUGE = 9223372036854775807


@pytest.mark.parametrize("dim", [f"(batch+1)//{HUGE}", f"(2*batch+1)//{HUGE}", f"(batch-{HUGE})//{HUGE}", "batch//2"])
@pytest.mark.parametrize("bounds", [Range(1, 64), Range(1, HUGE), Range(3, 9, (3, 9)), Range(1, HUGE, multiple_of=7)])
def test_huge_dimensions_are_checked_without_enumeration(dim: str, bounds: Range) -> None:
    """The result is the same as that of trying every size."""
    promised = Contract("toy", (TensorSpec("x", "float32", (dim,)),), (), {"batch": bounds})
    for size in (0, 1, 2, 5, 10**6, HUGE):
        started = time.monotonic()
        try:
            contract.enforce(promised, (TensorSpec("x", "float32", (size,)),))
            taken = True
        except ContractError:
            taken = False
        assert time.monotonic() - started < 1
        some = range(1, 200) if bounds.max > 64 else bounds.sizes
        if any(bounds.allows(one) and Expression.parse(dim).at({"batch": one}) == size for one in some):
            assert taken
        if bounds.max <= 64:
            assert taken == any(Expression.parse(dim).at({"batch": one}) == size for one in bounds.sizes)


def test_ranges_with_common_sizes() -> None:
    for bounds in (Range(1, 20), Range(5, 20, multiple_of=7), Range(2, 9, (2, 9))):
        for start in range(-3, 25):
            for stop in range(start, 25):
                sizes = range(start, stop)
                assert bounds.allows_any(sizes) == any(map(bounds.allows, sizes)), (bounds, sizes)


def test_a_huge_range_is_not_enumerated() -> None:
    narrow = Contract("toy", (), (), {"batch": Range(4, 1 << 40, multiple_of=4)})
    wide = replace(narrow, symbols={"batch": Range(1, 1 << 60)})
    asked: list[int] = []
    program = object.__new__(Program)
    program.__dict__.update(contract=narrow, whole=wide, make_at=lambda sizes: asked.append(sizes["batch"]))
    list(program.outside())
    assert asked == [5, 6, 1, 3, (1 << 40) + 1]
    assert to_json(narrow)
