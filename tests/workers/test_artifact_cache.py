"""Artifacts that are taken from the cache, and all that prevents it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import request_for

from exporter.core import environment
from exporter.core.errors import UsageError
from exporter.core.records import Manifest, VariantRecord
from exporter.runs import pipeline, rebuild
from exporter.targets import Exported
from exporter.workers import artifact_cache
from exporter.workers.children import Zygotes

Build = Callable[..., tuple[VariantRecord, bytes]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of 1 GB."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPORTER_CACHE_GB", "1")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield folder / "artifacts"


@pytest.fixture(scope="module")
def build(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """A function that exports a tiny model, and returns its row and its file."""
    with Zygotes() as zygotes:

        def act(recipe: str = "tiny:mlp", target: str = "export", **settings: Any) -> tuple[VariantRecord, bytes]:
            request = request_for(recipe, tmp_path_factory.mktemp("out") / "bundle", target, **settings)
            manifest, place = pipeline.run(request, zygotes=zygotes)
            row = manifest.variants[0]
            assert row.artifact is not None, row.reason
            return row, (place / row.artifact.path).read_bytes()

        yield act


def taken(row: VariantRecord) -> bool:
    return artifact_cache.NOTE in row.notes


def test_the_same_program_is_built_once(build: Build, folder: Path) -> None:
    first, made = build()
    again, same = build()
    assert (taken(first), taken(again), again.status) == (False, True, "passed")
    assert same == made
    assert first.lifecycle is not None
    assert again.lifecycle is not None
    assert again.lifecycle.export_s == first.lifecycle.export_s, "the time to build it"
    assert not taken(build(reuse=False)[0])


@pytest.mark.parametrize("settings", [{"weights": "random", "seed": 5}, {"dynamic": "none"}, {"threads": 2}])
def test_another_program_or_setting_is_built(build: Build, settings: dict[str, Any]) -> None:
    build()
    assert not taken(build(**settings)[0])


def test_a_trace_is_taken_if_the_exported_program_says_the_same(build: Build) -> None:
    """A trace is made from the module, so it is kept only beside a program of the same function."""
    first, made = build(target="trace,export")
    again, same = build(target="trace,export")
    assert (taken(first), taken(again), again.status) == (False, True, "passed")
    assert same == made
    assert not taken(build(target="trace,export", weights="random", seed=5)[0])


@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        ("trace", "tiny:mlp"),
        ("trace@int8,export", "tiny:mlp"),
        ("trace,export", "stepped:branch"),
        ("trace,export", "operators:aligned"),
    ],
    ids=["no program", "layers replaced by class", "a program for fewer sizes", "operators of other libraries"],
)
def test_other_traces_are_made_again(build: Build, target: str, recipe: str) -> None:
    assert not any(taken(build(recipe, target)[0]) for _ in range(2))


def test_a_variable_of_the_compiler_counts(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    assert artifact_cache._matters("TORCHINDUCTOR_FREEZING")
    assert artifact_cache._matters("CXXFLAGS")
    assert artifact_cache._matters("ATEN_CPU_CAPABILITY")
    assert artifact_cache._matters("ONEDNN_MAX_CPU_ISA")
    assert not artifact_cache._matters("TORCHINDUCTOR_CACHE_DIR")
    assert not artifact_cache._matters("HOME")


def test_an_altered_file_is_built_again(build: Build, folder: Path) -> None:
    build()
    for file in folder.glob("*/exported.pt2"):
        file.write_bytes(b"altered")
    row, made = build()
    assert (taken(row), row.status) == (False, "passed")
    assert made != b"altered"
    assert taken(build()[0])


def test_a_wrong_artifact_in_the_cache_fails_its_check(build: Build, folder: Path) -> None:
    """Whoever replaces a file and its hash does not get it past the golden."""
    shutil.rmtree(folder)
    build()
    for place in (file.parent for file in folder.glob("*/exported.pt2")):
        record = json.loads((place / artifact_cache.RECORD).read_text())
        wrong = _with_other_weights((place / "exported.pt2").read_bytes())
        (place / "exported.pt2").write_bytes(wrong)
        record["sha256"]["exported.pt2"] = hashlib.sha256(wrong).hexdigest()
        (place / artifact_cache.RECORD).write_text(json.dumps(record))
    with pytest.raises(AssertionError, match="wrong at batch=2"):
        build()


def _with_other_weights(program: bytes) -> bytes:
    """Return a program with the sign of one weight changed."""
    source, target = zipfile.ZipFile(io.BytesIO(program)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as changed:
        for member in source.infolist():
            data = bytearray(source.read(member))
            if "/weights/" in member.filename and len(data) >= 16 and "config" not in member.filename:
                data[3] ^= 0x80
            changed.writestr(member, bytes(data))
    assert zlib.crc32(target.getvalue()) != zlib.crc32(program)
    return target.getvalue()


def test_a_rebuild_builds(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(request: Any, *_: Any) -> tuple[Manifest, Path]:
        asked.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(rebuild.integrity, "examine", lambda *_: _Anything())
    monkeypatch.setattr(rebuild.layout, "read_manifest", lambda _: _Anything())
    monkeypatch.setattr(rebuild, "require_materials", lambda *_: None)
    request = request_for("tiny:mlp", tmp_path / "bundle")
    assert request.reuse
    with pytest.raises(KeyboardInterrupt):
        rebuild.run(tmp_path, _Anything(), lambda _: request, lambda: contextlib.nullcontext(_Anything()))
    assert [one.reuse for one in asked] == [False]


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return _Anything() if name not in ("problems", "spoilt") else {}

    def __call__(self, *_: Any) -> Any:
        return _Anything()


def test_the_least_recently_used_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EXPORTER_CACHE_GB", "0.00001")  # 10 kB
    file = tmp_path / "net.pt2"
    file.write_bytes(b"x" * 3000)
    for number, key in enumerate(("a", "b", "c")):
        artifact_cache.keep(key, file, Exported(), 1.0)
        os.utime(tmp_path / "artifacts" / key, (number, number))
    assert artifact_cache.take("a", tmp_path / "copy" / "net.pt2") is None, "there is no such folder to write to"
    artifact_cache.keep("a", file, Exported(("a note",)), 2.0)
    os.utime(tmp_path / "artifacts" / "a", (9, 9))
    artifact_cache.keep("d", file, Exported(), 1.0)
    assert sorted(place.name for place in (tmp_path / "artifacts").iterdir()) == ["a", "c", "d"]
    file.unlink()
    assert artifact_cache.take("a", file) == (Exported(("a note", artifact_cache.NOTE)), 2.0)
    assert file.read_bytes() == b"x" * 3000
    file.write_bytes(b"x" * 6000)
    artifact_cache.keep("large", file, Exported(), 1.0)
    assert not (tmp_path / "artifacts" / "large").exists(), "it is more than half of the limit"


def test_a_limit_of_zero_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("0", 0.0), ("2", 2e9), ("", 5e9)):
        monkeypatch.setenv("EXPORTER_CACHE_GB", text)
        assert environment.cache_limit() == expected
    for text in ("much", "nan", "-1", "inf"):
        monkeypatch.setenv("EXPORTER_CACHE_GB", text)
        with pytest.raises(UsageError, match=f"EXPORTER_CACHE_GB is '{text}'"):
            environment.cache_limit()


def test_a_wrong_limit_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_CACHE_GB", "much")
    with pytest.raises(UsageError, match="EXPORTER_CACHE_GB is 'much'"):
        pipeline.run(request_for("tiny:mlp", tmp_path / "bundle", "trace"))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EXPORTER_CACHE_GB", "1")
    (tmp_path / "net.pt2").write_bytes(b"x")

    def write(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", write)
    monkeypatch.setattr(artifact_cache.shutil, "copyfile", write)
    artifact_cache.keep("a", tmp_path / "net.pt2", dataclasses.replace(Exported()), 1.0)
    assert list((tmp_path / "artifacts").iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_a_kept_artifact_is_shared_only_with_the_bundle_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Where hard links are not possible, it is copied. If the bundle's file is changed, the kept one is not taken."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EXPORTER_CACHE_GB", "1")

    def refuse(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    first, second = tmp_path / "first" / "net.pt2", tmp_path / "second" / "net.pt2"
    for file in (first, second):
        file.parent.mkdir()
    first.write_bytes(b"built")
    artifact_cache.keep("a", first, Exported(), 1.0)
    assert first.stat().st_nlink == (2 if links else 1)
    assert artifact_cache.take("a", second) is not None
    first.write_bytes(b"other")
    assert second.read_bytes() == b"built"
    assert (artifact_cache.take("a", second) is None) == links
