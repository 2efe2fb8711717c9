"""Damaged bundles, packed bundles and manifests: they are refused with a cause, and nothing is written elsewhere.

`HYPOTHESIS_PROFILE=nightly` draws 5,000 cases in each test instead of 100, different ones each time (at least 10,000
for each reader), and damages bundles in more ways.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import json
import operator
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support import faults
from support.archives import Member, attempt, compressed, make_bundle, member, members_of, packed, tar_of, tree
from support.commands import NATIVE, Cli, republish
from support.manifests import MANIFEST
from support.signatures import write_keys

import exporter
from exporter.bundle import archive, integrity, layout
from exporter.core import environment
from exporter.core.errors import ArtifactError, ExporterError
from exporter.core.json_codec import from_json, to_json
from exporter.core.records import Manifest

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


def damaged(data: bytes, drawn: list[Edit]) -> bytes:
    """Return the bytes after all edits."""
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
def test_damaged_bytes_of_a_packed_bundle(whole: bytes, folder: Path, drawn: list[Edit]) -> None:
    attempt(damaged(whole, drawn), folder)


@fuzzed
@given(drawn=edits)
def test_damaged_bytes_of_the_tar_in_a_packed_bundle(whole: bytes, folder: Path, drawn: list[Edit]) -> None:
    attempt(compressed(damaged(tar_of(members_of(whole)), drawn)), folder)


@fuzzed
@given(others=members, data=st.data())
def test_foreign_members_in_a_packed_bundle(
    whole: bytes, folder: Path, others: list[Member], data: st.DataObject
) -> None:
    """They are inserted or replace others; the size in a header may be wrong."""
    held = members_of(whole)
    for info, _ in others:
        info.size = data.draw(st.sampled_from([info.size, 0, 1, 1 << 40]))
    at = data.draw(st.integers(0, len(held)))
    to = data.draw(st.integers(at, len(held)))
    attempt(compressed(tar_of([*held[:at], *others, *held[to:]])), folder)


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield every path in a JSON value, its root first."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*place, key))


def at(place: Place, value: Any) -> Any:
    return functools.reduce(operator.getitem, place, value)


PLAIN = json.loads(to_json(MANIFEST))
PLACES = list(places(PLAIN))[1:]


def read(text: bytes, folder: Path) -> None:
    """Assert that a manifest is refused with ArtifactError, or can be written and read again."""
    (folder / layout.MANIFEST).write_bytes(text)
    try:
        found = layout.read_manifest(folder)
    except ArtifactError:
        return
    assert from_json(Manifest, to_json(found)) == found


@fuzzed
@given(drawn=edits)
def test_damaged_bytes_of_a_manifest(folder: Path, drawn: list[Edit]) -> None:
    read(damaged(to_json(MANIFEST).encode(), drawn), folder)


@fuzzed
@given(place=st.sampled_from(PLACES), value=values | st.sampled_from(PLACES).map(lambda place: at(place, PLAIN)))
def test_wrong_values_in_a_manifest(folder: Path, place: Place, value: Any) -> None:
    """Any value replaces any other, including values from elsewhere in the manifest."""
    altered = copy.deepcopy(PLAIN)
    at(place[:-1], altered)[place[-1]] = value
    read(json.dumps(altered).encode(), folder)


def test_missing_values_in_a_manifest(folder: Path) -> None:
    for place in PLACES:
        altered = copy.deepcopy(PLAIN)
        del at(place[:-1], altered)[place[-1]]
        read(json.dumps(altered).encode(), folder)


# Every fault of a bundle, with every command


class Refused(Exception):
    """The message of a command that refuses a bundle."""


@dataclass(frozen=True)
class Whole:
    """A signed bundle of one artifact, its keys, and inputs for it."""

    place: Path
    key: Path
    public: Path
    inputs: Path


@pytest.fixture(scope="module")
def one(made_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The bundle that each test copies."""
    folder = tmp_path_factory.mktemp("one")
    place = Path(shutil.copytree(made_bundle, folder / "pair"))
    found = layout.read_manifest(place)
    for variant in found.variants:
        if variant.name != "trace":
            assert variant.artifact is not None
            (place / variant.artifact.path).unlink()
            (place / variant.log).unlink()
    (place / "logs" / "trace.log").write_text("all is well")
    republish(place, dataclasses.replace(found, variants=tuple(v for v in found.variants if v.name == "trace")))
    key, public = write_keys(folder, ed25519.Ed25519PrivateKey.generate())
    integrity.sign(place, key, lambda: "")
    save_file(PAIR, folder / "inputs.safetensors")
    return Whole(place, key, public, folder / "inputs.safetensors")


RUNNER = environment.find_runner()
PAIR = {"ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "mask": torch.ones(2, 3)}
Act = Callable[[Cli, Whole, Path], Any]  # runs a command; returns a result to compare with that for the sound bundle


def ended(cli: Cli, *words: object) -> str:
    """Return the output of a command. Raises Refused if it exits with 1 or 2 and a message."""
    done = cli(*words)
    said = done.out + done.err
    assert "Traceback" not in said
    assert "a bug in exporter" not in said
    if done.code:
        assert done.code in (1, 2)
        assert said.strip(), "and no word"
        raise Refused(said)
    return done.out


def judged(text: str) -> list[Any]:
    """Return the rows of a manifest, without measurements."""
    parity = ("verdict", "max_abs", "rmse_ratio", "cases")
    rows = ((v["name"], v["status"], v["parity"]) for v in json.loads(text)["variants"])
    return [(name, status, [found[key] for key in parity]) for name, status, found in rows]


def check(cli: Cli, whole: Whole, place: Path) -> Any:
    return judged(ended(cli, "check", place, "-q", "--json", "--threads", "1"))


def check_signed(cli: Cli, whole: Whole, place: Path) -> Any:
    return judged(ended(cli, "check", place, "-q", "--json", "--threads", "1", "--public-key", whole.public))


def bench(cli: Cli, whole: Whole, place: Path) -> Any:
    return judged(ended(cli, "bench", place, "-q", "--json", "--threads", "1", "--time-budget", "0.1"))


def show(cli: Cli, whole: Whole, place: Path) -> Any:
    return ended(cli, "report", place, "--format", "json")


def pack(cli: Cli, whole: Whole, place: Path) -> Any:
    file = place.with_name("packed")
    ended(cli, "pack", place, "--out", file)
    archive.unpack(file, place.with_name("unpacked"), 1 << 24)
    return tree(place.with_name("unpacked"))


def sign(cli: Cli, whole: Whole, place: Path) -> Any:
    ended(cli, "sign", place, "--key", whole.key)
    return base64.b64decode(json.loads((place / layout.SIGNATURE).read_text())["payload"])


def compare(cli: Cli, whole: Whole, place: Path) -> Any:
    return json.loads(ended(cli, "compare", whole.place, place, "--format", "json"))["pairs"]


def compare_old(cli: Cli, whole: Whole, place: Path) -> Any:
    return json.loads(ended(cli, "compare", place, whole.place, "--format", "json"))["pairs"]


def opened(place: Path, **how: Any) -> Any:
    try:
        outputs = exporter.open_artifact(place / "trace.pt", threads=1, **how)(**PAIR)
    except ExporterError as error:
        raise Refused(str(error)) from error
    return {name: tensor.tolist() for name, tensor in outputs.items()}


def open_artifact(cli: Cli, whole: Whole, place: Path) -> Any:
    return opened(place)


def open_signed(cli: Cli, whole: Whole, place: Path) -> Any:
    return opened(place, verify="signed", public_key=whole.public)


def native(place: Path, command: str, *words: object) -> str:
    """Return the output of exporter-run."""
    done = subprocess.run(
        [str(RUNNER), command, str(place / "trace.pt"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1, 2), f"exit code {done.returncode}: {done.stderr}"
    if done.returncode:
        assert (done.stdout + done.stderr).strip(), "and no word"
        raise Refused(done.stderr)
    return done.stdout.replace(str(place), "")


def native_info(cli: Cli, whole: Whole, place: Path) -> Any:
    return {**json.loads(native(place, "info", "--json")), "bytes": "of the file as it is"}


def native_verify(cli: Cli, whole: Whole, place: Path) -> Any:
    return {**json.loads(native(place, "verify", "--json")), "peak_rss_mb": "of the process"}


def native_run(cli: Cli, whole: Whole, place: Path) -> Any:
    outputs = place.with_name("outputs.safetensors")
    native(place, "run", "--inputs", whole.inputs, "--outputs", outputs)
    return {name: tensor.tolist() for name, tensor in load_file(outputs).items()}


def native_bench(cli: Cli, whole: Whole, place: Path) -> Any:
    native(place, "bench", "--warmup", 1, "--windows", 1, "--runs", 1)
    return "timed"


PYTHON: Mapping[str, Act] = {
    "check": check,
    "check --public-key": check_signed,
    "bench": bench,
    "report": show,
    "pack": pack,
    "sign": sign,
    "compare, new": compare,
    "compare, old": compare_old,
    "open_artifact": open_artifact,
    "open_artifact, signed": open_signed,
}
CPP: Mapping[str, Act] = {
    "exporter-run info": native_info,
    "exporter-run verify": native_verify,
    "exporter-run run": native_run,
    "exporter-run bench": native_bench,
}
COMMANDS = {**PYTHON, **(CPP if NATIVE else {})}
FAULTS = faults.faults(NIGHTLY)
# Commands that must refuse every fault, because they vouch for every file.
STRICT = ("check", "check --public-key", "bench", "pack", "compare, new", "compare, old")


def cells() -> Iterator[tuple[str, str]]:
    """Yield every fault with every command; C++ with files that it does not read only nightly."""
    for fault, (name, _) in FAULTS.items():
        for command in COMMANDS:
            if NIGHTLY or command in PYTHON or name in faults.LOADED:
                yield fault, command


@pytest.fixture(scope="module")
def sound() -> dict[str, Any]:
    """The results for the sound bundle by command, filled on first use."""
    return {}


@pytest.fixture
def _python_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only Python sessions: exporter-run is tested by its own commands."""
    monkeypatch.setattr(environment, "find_runner", lambda: None)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("_python_sessions")
@pytest.mark.parametrize(("fault", "command"), list(cells()))
def test_every_command_handles_every_fault(
    one: Whole, sound: dict[str, Any], cli: Cli, tmp_path: Path, fault: str, command: str
) -> None:
    """A command refuses the bundle with a message, or returns the same result as for the sound bundle."""
    if command not in sound:
        (tmp_path / "sound").mkdir()
        sound[command] = COMMANDS[command](cli, one, faults.copy(one.place, tmp_path / "sound" / "pair"))
    name, spoil = FAULTS[fault]
    place = faults.copy(one.place, tmp_path / "pair")
    spoil(place / name)
    try:
        found = COMMANDS[command](cli, one, place)
    except Refused:
        return
    assert command not in STRICT, "the command accepted a damaged file"
    assert found == sound[command], "the result differs"


def test_an_alteration_that_only_the_signature_reveals(one: Whole, cli: Cli, tmp_path: Path) -> None:
    """An attacker can recompute every hash and record in a bundle, but not the signature."""
    place = Path(shutil.copytree(one.place, tmp_path / "pair"))
    faults.flip(place / "trace.pt")
    found = layout.read_manifest(place)
    (row,) = found.variants
    republish(place, dataclasses.replace(found, variants=(dataclasses.replace(row, artifact=None),)))
    row = dataclasses.replace(row, artifact=layout.record(place / "trace.pt"))
    republish(place, dataclasses.replace(found, variants=(row,)))
    for signature in (True, False):
        if not signature:
            (place / layout.SIGNATURE).unlink()
        for command in (check_signed, open_signed):
            with pytest.raises(Refused, match="sign"):
                command(cli, one, place)
        with pytest.raises(Refused, match="sign"):
            ended(cli, "pack", place, "--out", tmp_path / "packed", "--public-key", one.public)
