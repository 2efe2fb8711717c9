"""Packed bundles and manifests that somebody spoilt: refused with a cause, and nothing lands elsewhere.

`HYPOTHESIS_PROFILE=nightly` draws 5,000 in each test instead of 100, others each time: 10,000 and more for each reader.
"""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archives import Member, attempt, compressed, make_bundle, member, members_of, packed, tar_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifests import MANIFEST

from exporter import bundle
from exporter.errors import ArtifactError
from exporter.records import Manifest
from exporter.serialization import from_json, to_json

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
fuzzed = settings(
    max_examples=5_000 if NIGHTLY else 100,
    derandomize=not NIGHTLY,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
Edit = tuple[str, int, bytes]
Place = tuple[str | int, ...]

edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "overwrite", "repeat"]),
        st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)
names = st.one_of(
    st.sampled_from(
        [
            "manifest.json",
            "bundle/trace.pt",
            "bundle/logs/a",
            "bundle/../../sentinel/kept",
            "../sentinel/kept",
            "/tmp/x",
        ]
    ),
    st.lists(st.sampled_from(["bundle", "logs", "..", ".", "", "a", "sentinel", "kept", "\n", "ü", "trace.pt"])).map(
        "/".join
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
)
kinds = st.sampled_from([*tarfile.SUPPORTED_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE, b"\xff"])
members = st.lists(st.builds(member, names, st.binary(max_size=600), kinds, names), min_size=1, max_size=3)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["n//0", "9" * 5000, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def spoilt(data: bytes, drawn: list[Edit]) -> bytes:
    """The bytes with the edits made, one after the other."""
    for how, where, what in drawn:
        at = where % (len(data) + 1)
        before, after = data[:at], data[at:]
        match how:
            case "flip":
                after = bytes(a ^ b for a, b in zip(after, what, strict=False)) + after[len(what) :]
            case "cut":
                after = b""
            case "insert":
                after = what + after
            case "overwrite":
                after = what + after[len(what) :]
            case "repeat":
                after = before[-tarfile.BLOCKSIZE :] + after
        data = before + after
    return data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A packed bundle."""
    data = packed(make_bundle(tmp_path_factory.mktemp("whole") / "toy"))
    assert attempt(data, tmp_path_factory.mktemp("in"))
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@fuzzed
@given(drawn=edits)
def test_spoilt_bytes_of_a_packed_bundle(whole: bytes, folder: Path, drawn: list[Edit]) -> None:
    attempt(spoilt(whole, drawn), folder)


@fuzzed
@given(drawn=edits)
def test_spoilt_bytes_of_the_tar_in_it(whole: bytes, folder: Path, drawn: list[Edit]) -> None:
    attempt(compressed(spoilt(tar_of(members_of(whole)), drawn)), folder)


@fuzzed
@given(others=members, data=st.data())
def test_members_that_nobody_packed(whole: bytes, folder: Path, others: list[Member], data: st.DataObject) -> None:
    """Between, or in the place of, those that were; headers may say another size than there is."""
    held = members_of(whole)
    for info, _ in others:
        info.size = data.draw(st.sampled_from([info.size, 0, 1, 1 << 40]))
    at = data.draw(st.integers(0, len(held)))
    to = data.draw(st.integers(at, len(held)))
    attempt(compressed(tar_of([*held[:at], *others, *held[to:]])), folder)


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value, itself first."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*place, key))


def at(place: Place, value: Any) -> Any:
    return functools.reduce(operator.getitem, place, value)


PLAIN = json.loads(to_json(MANIFEST))
PLACES = list(places(PLAIN))[1:]


def read(text: bytes, folder: Path) -> None:
    """Refused in one way, or read, and then it can be written and read again."""
    (folder / bundle.MANIFEST).write_bytes(text)
    try:
        found = bundle.read_manifest(folder)
    except ArtifactError:
        return
    assert from_json(Manifest, to_json(found)) == found


@fuzzed
@given(drawn=edits)
def test_spoilt_bytes_of_a_manifest(folder: Path, drawn: list[Edit]) -> None:
    read(spoilt(to_json(MANIFEST).encode(), drawn), folder)


@fuzzed
@given(place=st.sampled_from(PLACES), value=values | st.sampled_from(PLACES).map(lambda place: at(place, PLAIN)))
def test_other_values_in_a_manifest(folder: Path, place: Place, value: Any) -> None:
    """Any value in any place; those of other places too."""
    altered = copy.deepcopy(PLAIN)
    at(place[:-1], altered)[place[-1]] = value
    read(json.dumps(altered).encode(), folder)


def test_values_left_out_of_a_manifest(folder: Path) -> None:
    for place in PLACES:
        altered = copy.deepcopy(PLAIN)
        del at(place[:-1], altered)[place[-1]]
        read(json.dumps(altered).encode(), folder)
