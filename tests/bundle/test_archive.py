"""Packed bundles: they are reproducible, and contain every recorded file and nothing else."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from support.archives import (
    LIMIT,
    TRACE,
    Member,
    attempt,
    compressed,
    make_bundle,
    member,
    members_of,
    packed,
    tar_of,
    tree,
)
from support.commands import Cli
from support.manifests import manifest, variant
from support.signatures import write_keys

from exporter.bundle import archive, checksums, integrity, layout, publishing
from exporter.bundle.signing import Trust
from exporter.core import filesystem
from exporter.core.errors import AlteredError, ArtifactError, BundleError, ExporterError, UsageError


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "toy")


def unpack(data: bytes, folder: Path, limit: int = LIMIT) -> Path:
    (folder / "given.tar.zst").write_bytes(data)
    archive.unpack(folder / "given.tar.zst", folder / "given", limit)
    return folder / "given"


def test_round_trip(toy: Path, tmp_path: Path) -> None:
    assert tree(unpack(packed(toy), tmp_path)) == tree(toy)


def test_a_bundle_of_any_length(toy: Path, tmp_path: Path) -> None:
    """A tar is padded to a whole record with one block of zeros at least and one record at most."""
    for blocks in range(tarfile.RECORDSIZE // tarfile.BLOCKSIZE):
        (toy / "logs" / "trace.log").write_bytes(bytes(blocks * tarfile.BLOCKSIZE))
        out = unpack(packed(toy), tmp_path)
        assert (out / "logs" / "trace.log").stat().st_size == blocks * tarfile.BLOCKSIZE


def sealed(place: Path) -> Path:
    """Add the integrity files, as an export does."""
    integrity.seal(place, layout.read_manifest(place), ())
    return place


def test_integrity_files_are_packed(toy: Path, tmp_path: Path) -> None:
    out = unpack(packed(sealed(toy)), tmp_path)
    assert tree(out) == tree(toy)
    assert integrity.examine(out, None).problems == {}


def test_an_altered_log(toy: Path, tmp_path: Path) -> None:
    members = [(i, b"all is lost" if i.name.endswith(".log") else d) for i, d in members_of(packed(sealed(toy)))]
    with pytest.raises(ArtifactError, match=r"logs/trace\.log does not match SHA256SUMS"):
        unpack(compressed(tar_of(members)), tmp_path)
    (toy / "logs" / "trace.log").write_text("all is lost")
    with pytest.raises(ArtifactError, match="failed verification"):
        packed(toy)


def test_a_bundle_without_its_list_of_hashes(toy: Path, tmp_path: Path) -> None:
    """The other files of a sealed bundle show that there was one."""
    members = [(info, data) for info, data in members_of(packed(sealed(toy))) if not info.name.endswith(checksums.NAME)]
    with pytest.raises(ArtifactError, match=r"SHA256SUMS is missing"):
        unpack(compressed(tar_of(members)), tmp_path)


def resealed(members: list[Member]) -> bytes:
    """Return an archive of these members, with a `SHA256SUMS` that lists them."""
    held = {info.name.removeprefix("bundle/"): data for info, data in members if not info.name.endswith(checksums.NAME)}
    sums = checksums.text({name: hashlib.sha256(data).hexdigest() for name, data in held.items()})
    return compressed(
        tar_of([*(member(f"bundle/{n}", d) for n, d in held.items()), member("bundle/SHA256SUMS", sums.encode())])
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("logs/trace.log", "well", "lost", r"logs/trace\.log does not match provenance\.json"),
        ("bom.cdx.json", "golden.safetensors", "golden.other", r"bom\.cdx\.json does not match provenance\.json"),
        ("provenance.json", "logs/trace.log", "logs/other.log", r"logs/other\.log is missing; .* not in provenance"),
        ("provenance.json", "{", "[", r"provenance\.json: "),
        ("provenance.json", None, None, r"provenance\.json is missing"),
    ],
)
def test_a_bundle_that_its_provenance_contradicts(
    toy: Path, tmp_path: Path, name: str, old: str | None, new: str | None, said: str
) -> None:
    """`SHA256SUMS` lists every file as it is, so only the provenance shows that it was altered."""
    members = members_of(packed(sealed(toy)))
    kept = tree(unpack(resealed(members), tmp_path))
    altered = []
    for info, data in members:
        if info.name != f"bundle/{name}":
            altered.append((info, data))
        elif old and new:
            assert old.encode() in data
            altered.append((info, data.replace(old.encode(), new.encode())))
    with pytest.raises(ArtifactError, match=said):
        unpack(resealed(altered), tmp_path)
    assert tree(tmp_path / "given") == kept, "what was there is not replaced"


def test_packing_is_reproducible(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = packed(toy)
    again = make_bundle(tmp_path / "another name")
    for file in again.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700)
    monkeypatch.setattr(archive, "THREADS", 1)
    assert packed(again) == first


LONG = "@int8+encoder.layer.0.attention.output.dense+encoder.layer.1.attention.output.dense"


@pytest.mark.parametrize("name", [f"trace{LONG}-and-more.pt", "a" * 91 + ".pt", "a" * 90 + ".pt", "b" * 252 + ".pt"])
def test_a_bundle_with_long_names(tmp_path: Path, name: str) -> None:
    """Such are the names of variants with layers in float32; a header of a tar holds 100 bytes."""
    with publishing.stage(tmp_path / "toy") as staging:
        (staging.root / name).write_bytes(TRACE)
        (staging.logs / f"{layout.stem(name)}.log").write_text("all is well")
        staging.write(manifest(variant(artifact=layout.record(staging.root / name)), golden=None))
        place = sealed(staging.publish())
    assert tree(unpack(packed(place), tmp_path)) == tree(place)


def test_the_manifest_comes_first(toy: Path) -> None:
    names = [info.name for info, _ in members_of(packed(toy))]
    assert names == ["bundle/manifest.json", "bundle/golden.safetensors", "bundle/trace.pt", "bundle/logs/trace.log"]


def test_weights_that_artifacts_share_are_stored_once(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(4 << 20)  # farther apart than zstd's default window at this level
    with publishing.stage(tmp_path / "toy") as staging:
        records = []
        for name in ("script.pt", "trace.pt"):
            (staging.root / name).write_bytes(name.encode() + noise)
            records.append(layout.record(staging.root / name))
        variants = [variant(r.path, artifact=r) for r in records]
        staging.write(manifest(*variants, golden=None))
        staging.publish()
    assert len(packed(tmp_path / "toy")) < 1.1 * len(noise)


def test_an_altered_bundle_is_not_packed(toy: Path) -> None:
    (toy / "trace.pt").write_bytes(TRACE[::-1])
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        packed(toy)
    assert not (toy.parent / "packed.tar.zst").exists()


@pytest.mark.parametrize("name", ["notes.txt", "logs/.hidden", "logs/folder/x"])
def test_files_that_exporter_did_not_write_are_not_packed(toy: Path, name: str) -> None:
    (toy / name).parent.mkdir(exist_ok=True)
    (toy / name).write_text("mine")
    with pytest.raises(UsageError, match=name.removesuffix("/x")):
        packed(toy)


@pytest.mark.parametrize("name", ["toy.tar.zst", "logs/toy.tar.zst", "../toy/toy.tar.zst"])
def test_a_bundle_is_not_packed_into_itself(toy: Path, name: str) -> None:
    before = tree(toy)
    with pytest.raises(UsageError, match="is inside the bundle"):
        archive.pack(toy, toy / name)
    assert tree(toy) == before


def test_a_failed_pack_keeps_the_last_file(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = packed(toy)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(archive, "_write", full)
    with pytest.raises(BundleError, match="the disk is full"):
        packed(toy)
    assert {f.name for f in toy.parent.iterdir()} == {"toy", "packed.tar.zst"}
    assert (toy.parent / "packed.tar.zst").read_bytes() == before


def test_packing_writes_through_links_and_into_pipes(toy: Path, tmp_path: Path) -> None:
    expected = packed(toy)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("file")
    archive.pack(toy, folder / "link")
    assert (folder / "file").read_bytes() == expected
    assert (folder / "link").is_symlink()
    os.mkfifo(folder / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((folder / "pipe").read_bytes)
        archive.pack(toy, folder / "pipe")
        assert read.result(60) == expected
    assert (folder / "pipe").is_fifo()
    with pytest.raises(BundleError, match="a directory is in its place"):
        archive.pack(toy, folder)
    assert {entry.name for entry in folder.iterdir()} == {"link", "file", "pipe"}


def test_unpacking_replaces_a_bundle_but_no_foreign_files(toy: Path, tmp_path: Path) -> None:
    data = packed(toy)
    place = unpack(data, tmp_path)
    (place / "logs" / "old.log").write_text("old")
    assert tree(unpack(data, tmp_path)) == tree(toy)
    (place / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"mine\.txt"):
        unpack(data, tmp_path)
    assert (place / "mine.txt").read_text() == "mine"


def test_a_packed_file_on_a_broken_disk(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(ArtifactError, match=r"^x\.tar\.zst cannot be unpacked: it cannot be read: Input/output error$"):
        archive.receive(Broken(), "x.tar.zst", tmp_path / "out", LIMIT)


def test_files_that_are_not_packed_bundles(tmp_path: Path) -> None:
    for data, said in ((b"", "truncated"), (b"hello", "cannot be unpacked"), (compressed(b""), "truncated")):
        with pytest.raises(ArtifactError, match=said):
            unpack(data, tmp_path)
    for path, said in ((tmp_path / "none.tar.zst", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ArtifactError, match=said):
            archive.unpack(path, tmp_path / "out", LIMIT)
    assert not (tmp_path / "out").exists()


LINKED = ("manifest.json", "trace.pt", "SHA256SUMS", "bom.cdx.json", "provenance.json", "provenance.dsse.json")


@pytest.mark.parametrize("name", [*LINKED, "provenance.sigstore.json", "logs", "logs/trace.log", "logs/more.log"])
@pytest.mark.parametrize("proven", [True, False])
def test_packing_does_not_follow_links(toy: Path, tmp_path: Path, name: str, proven: bool) -> None:
    """This holds even for a link to identical bytes, and for a bundle without integrity files."""
    if proven:
        sealed(toy)
    secret = tmp_path / "secret"
    if (toy / name).exists():
        (toy / name).rename(secret)
    else:
        secret.write_text("a secret")
    (toy / name).symlink_to(secret)
    with pytest.raises(ExporterError):
        packed(toy)
    assert not (toy.parent / "packed.tar.zst").exists()


@pytest.mark.parametrize("name", ["SHA256SUMS", "provenance.dsse.json", "manifest.json"])
def test_check_rejects_links(toy: Path, tmp_path: Path, signer: Path, name: str) -> None:
    integrity.sign(sealed(toy), signer, lambda: "")
    trust = Trust(signer.with_name("pub.pem"))
    assert integrity.examine(toy, trust).problems == {}
    (toy / name).rename(tmp_path / "elsewhere")
    (toy / name).symlink_to(tmp_path / "elsewhere")
    said = integrity.examine(toy, trust).problems[name]
    assert "is a link" in said or "is not a file" in said


@pytest.fixture
def signer(tmp_path: Path) -> Path:
    return write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate())[0]


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EROFS, "sign a copy in a writable place"), (errno.EFBIG, "ulimit -f")]
)
def test_a_signature_that_cannot_be_written(
    toy: Path, signer: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    sealed(toy)
    monkeypatch.setattr(filesystem, "write_atomic", fails)
    with pytest.raises(BundleError) as raised:
        integrity.sign(toy, signer, lambda: "")
    assert remedy in raised.value.remedy


def test_bundles_with_altered_signatures_are_not_packed(toy: Path, signer: Path) -> None:
    """Any byte counts, because `SHA256SUMS` lists the signature too."""
    signature = integrity.sign(sealed(toy), signer, lambda: "")
    whole = signature.read_bytes()
    assert packed(toy)
    spoilt = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 97)]
    for data in (*spoilt, b"", whole[:-1], whole[: len(whole) // 2], whole + b" "):
        signature.write_bytes(data)
        with pytest.raises(AlteredError, match=r"provenance\.dsse\.json"):
            packed(toy)
    signature.unlink()
    with pytest.raises(AlteredError, match=r"provenance\.dsse\.json is missing"):
        packed(toy)


def test_packing_can_require_a_signer(cli: Cli, toy: Path, signer: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    _, other = write_keys(tmp_path / "other", ed25519.Ed25519PrivateKey.generate())
    assert cli("pack", sealed(toy), "--public-key", other).code == 1
    integrity.sign(toy, signer, lambda: "")
    refused = cli("pack", toy, "--public-key", other)
    assert (refused.code, "was not signed by the key" in refused.err) == (1, True)
    assert cli("pack", toy, "--public-key", signer.with_name("pub.pem")).code == 0


def test_bundles_with_altered_signatures_are_not_unpacked(toy: Path, signer: Path, tmp_path: Path) -> None:
    integrity.sign(sealed(toy), signer, lambda: "")
    members = members_of(packed(toy))
    name = "bundle/provenance.dsse.json"
    for data in (b"", b"{}", members[[i.name for i, _ in members].index(name)][1][:-9]):
        others = [member(name, data) if i.name == name else (i, d) for i, d in members]
        with pytest.raises(ArtifactError, match=r"provenance\.dsse\.json"):
            unpack(compressed(tar_of(others)), tmp_path)


def test_interrupted_signing_leaves_a_valid_bundle(toy: Path, signer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signing is interrupted before each write, for a first and a second signature."""
    sealed(toy)
    write, cuts = filesystem.write_atomic, 0
    for _ in range(2):
        for left in range(3):
            calls = iter(range(left))

            def cut(path: Path, text: str, calls: Iterator[int] = calls) -> None:
                nonlocal cuts
                if next(calls, None) is None:
                    cuts += 1
                    raise KeyboardInterrupt
                write(path, text)

            monkeypatch.setattr(filesystem, "write_atomic", cut)
            with contextlib.suppress(KeyboardInterrupt):
                integrity.sign(toy, signer, lambda: "")
            assert integrity.examine(toy, Trust()).problems == {}
        monkeypatch.setattr(filesystem, "write_atomic", write)
        integrity.sign(toy, signer, lambda: "")
        assert integrity.examine(toy, Trust(signer.with_name("pub.pem"))).problems == {}
    assert cuts > 3


def long_name(path: bytes, *after: Member, size: int = 0) -> list[Member]:
    """Return members with a name in a block of its own; `size` is what its header says."""
    info, data = member("././@LongLink", path, tarfile.GNUTYPE_LONGNAME)
    info.size = size or len(path)
    return [(info, data + bytes(-len(data) % tarfile.BLOCKSIZE)), *after]


LOG = "bundle/logs/" + "a" * 100
CUT = member(LOG[:100], b"x")  # the header that follows the name

HOSTILE: dict[str, list[Member]] = {
    "above": [member("bundle/../sentinel/kept", b"x")],
    "above by logs": [member("bundle/logs/../../../sentinel/kept", b"x")],
    "absolute": [member("/etc/exporter", b"x")],
    "absolute within": [member("bundle//etc/exporter", b"x")],
    "elsewhere": [member("trace.pt", b"x")],
    "a name of its own": [member("bundle/notes.txt", b"x")],
    "a hidden log": [member("bundle/logs/.lock", b"x")],
    "a folder below": [member("bundle/logs/a/b", b"x")],
    "a name with a line break": [member("bundle/logs/a\nb", b"x")],
    "a symbolic link": [member("bundle/logs/a", kind=tarfile.SYMTYPE, link="/etc/passwd")],
    "a hard link": [member("bundle/logs/a", kind=tarfile.LNKTYPE, link="bundle/trace.pt")],
    "a device": [member("bundle/logs/a", kind=tarfile.CHRTYPE)],
    "a pipe": [member("bundle/logs/a", kind=tarfile.FIFOTYPE)],
    "a directory": [member("bundle/logs", kind=tarfile.DIRTYPE)],
    "a long name": [member("././@LongLink", b"bundle/logs/a\0", tarfile.GNUTYPE_LONGNAME)],
    "a long name without a file": long_name(LOG.encode() + b"\0"),
    "a short name in a block": long_name(b"bundle/logs/a\0", member("bundle/logs/a", b"x")),
    "a long name of another file": long_name(LOG.encode() + b"\0", member("bundle/logs/a", b"x")),
    "a long name above": long_name(b"bundle/logs/../../" + b"a" * 100 + b"\0", member("bundle/logs/../../" + "a" * 82)),
    "a long name elsewhere": long_name(b"a" * 120 + b"\0", member("a" * 100, b"x")),
    "a long name that is not closed": long_name(LOG.encode() + b"x", CUT, size=len(LOG)),
    "a long name with more after it": long_name(LOG.encode() + b"\0x", CUT, size=len(LOG) + 1),
    "a long name with a zero in it": long_name(LOG[:-1].encode() + b"\0a\0", CUT),
    "a long name beyond ASCII": long_name(LOG.encode() + b"\xc3\xa9\0", CUT),
    "a long name of two blocks": long_name(LOG.encode() + b"a" * 500 + b"\0", CUT),
    "a long name of any size": long_name(LOG.encode() + b"\0", CUT, size=1 << 40),
    "a long name of no size": long_name(LOG.encode() + b"\0", CUT, size=-1),
    "two long names": [*long_name(LOG.encode() + b"\0"), *long_name(LOG.encode() + b"\0", CUT)],
    "a long name of a link": long_name(LOG.encode() + b"\0", member(LOG[:100], kind=tarfile.SYMTYPE, link="/etc")),
    "a link with a long target": [
        member("././@LongLink", LOG.encode() + b"\0", tarfile.GNUTYPE_LONGLINK),
        member("bundle/logs/a", kind=tarfile.SYMTYPE, link=LOG[:100]),
    ],
    "an extended header": [member("bundle/x", b"20 path=bundle/logs/a\n", tarfile.XHDTYPE)],
    "the manifest twice": [member("bundle/manifest.json", b"{}")],
    "an artifact twice": [member("bundle/trace.pt", TRACE)],
    "a log twice": [member("bundle/logs/trace.log", b"x")],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_members_are_rejected(toy: Path, tmp_path: Path, what: str) -> None:
    members = [*members_of(packed(toy)), *HOSTILE[what]]
    assert attempt(compressed(tar_of(members)), tmp_path / "in") is None


def test_valid_members_are_accepted(toy: Path, tmp_path: Path) -> None:
    """This shows that the tests above can fail."""
    members = [*members_of(packed(toy)), member("bundle/logs/more.log", b"x"), *long_name(LOG.encode() + b"\0", CUT)]
    assert attempt(compressed(tar_of(members)), tmp_path / "in") is not None


def test_every_recorded_file_is_required(toy: Path, tmp_path: Path) -> None:
    first, *others = members_of(packed(toy))
    for left_out in others[:2]:
        members = [first, *(m for m in others if m is not left_out)]
        with pytest.raises(ArtifactError, match=f"{left_out[0].name.removeprefix('bundle/')} is missing"):
            unpack(compressed(tar_of(members)), tmp_path)
    with pytest.raises(ArtifactError, match=r"does not begin with a manifest\.json"):
        unpack(compressed(tar_of([*others, first])), tmp_path)


@pytest.mark.parametrize(
    ("data", "said"), [(TRACE[::-1], "SHA-256 differs"), (TRACE[1:], "699 bytes, not the recorded 700")]
)
def test_an_altered_artifact(toy: Path, tmp_path: Path, data: bytes, said: str) -> None:
    members = [member(i.name, data) if i.name.endswith("trace.pt") else (i, d) for i, d in members_of(packed(toy))]
    with pytest.raises(ArtifactError, match=said):
        unpack(compressed(tar_of(members)), tmp_path)


@pytest.mark.parametrize("name", ["../x.pt", "/x.pt", "manifest.json", "logs", ".lock", "a/b.pt", "", "a\0b"])
def test_hostile_names_in_the_manifest(toy: Path, tmp_path: Path, name: str) -> None:
    (_, text), *others = members_of(packed(toy))
    altered = json.loads(text)
    altered["variants"][0]["artifact"]["path"] = name
    members = [member("bundle/manifest.json", json.dumps(altered).encode()), *others]
    with pytest.raises(ArtifactError, match="cannot be a file of a bundle"):
        unpack(compressed(tar_of(members)), tmp_path)


def test_decompressed_bytes_are_limited(toy: Path, tmp_path: Path) -> None:
    data = packed(toy)
    size = sum(len(content) for content in tree(toy).values())
    with pytest.raises(ArtifactError, match="exceeds the size limit") as raised:
        unpack(data, tmp_path, size)  # headers count too
    assert "--max-gb" in raised.value.remedy
    unpack(data, tmp_path, size + 10_240)


def test_a_bomb(toy: Path, tmp_path: Path) -> None:
    """A log is not recorded in the manifest, so only the limit stops 100 MB packed in about a kilobyte."""
    bomb = compressed(tar_of([*members_of(packed(toy)), member("bundle/logs/bomb", bytes(100_000_000))]))
    assert len(bomb) < 20_000
    with pytest.raises(ArtifactError, match="exceeds the size limit"):
        unpack(bomb, tmp_path)


def test_many_members(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LOG_FILES", 3)
    with pytest.raises(ArtifactError, match="is not a plain file"):
        unpack(packed(toy), tmp_path)


def test_a_window_that_needs_more_memory_than_pack_uses(toy: Path, tmp_path: Path) -> None:
    data = bytearray(packed(toy))
    data[5] = (archive.WINDOW + 1 - 10) << 3  # RFC 8878, 3.1.1.1.2
    with pytest.raises(ArtifactError, match="too much memory"):
        unpack(bytes(data), tmp_path)


def test_more_after_the_end(toy: Path, tmp_path: Path) -> None:
    tar = tar_of(members_of(packed(toy)))
    for more in (b"x", bytes(tarfile.RECORDSIZE)):
        with pytest.raises(ArtifactError, match="more follows"):
            unpack(compressed(tar + more), tmp_path)


SKIPPABLE = b"\x50\x2a\x4d\x18" + b"\3\0\0\0abc"  # RFC 8878, 3.1.2


@pytest.mark.parametrize(
    "more",
    [b"x", b"\x28\xb5", b"garbage" * 9, bytes(4), compressed(b""), compressed(bytes(100)), compressed(b"x"), SKIPPABLE],
    ids=[
        "a byte",
        "half a frame",
        "garbage",
        "zeros",
        "an empty frame",
        "a frame of zeros",
        "a frame",
        "a skippable frame",
    ],
)
def test_more_after_the_frame(toy: Path, tmp_path: Path, more: bytes) -> None:
    with pytest.raises(ArtifactError, match="more follows"):
        unpack(packed(toy) + more, tmp_path)


def test_a_flipped_bit_in_a_log(toy: Path, tmp_path: Path) -> None:
    """The manifest has no hash of it, but zstd has a checksum."""
    data = packed(toy)
    with pytest.raises(ExporterError):
        unpack(data[:-1] + bytes([data[-1] ^ 1]), tmp_path)


def test_the_commands(cli: Cli, toy: Path) -> None:
    before = tree(toy)
    done = cli("pack", toy)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{toy}.tar.zst: ")
    layout.remove(toy)
    done = cli("unpack", f"{toy}.tar.zst")
    assert (done.code, done.out) == (0, f"Next: exporter check {toy}\n")
    assert tree(toy) == before
    done = cli("unpack", f"{toy}.tar.zst", "--max-gb", "1e-6")
    assert done.code == 2
    assert "exceeds the size limit" in done.err
    assert tree(toy) == before


def test_what_is_not_a_packed_file_is_named(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.touch()
    done = cli("unpack", file)
    assert (done.code, f"{file} is not a packed bundle: its name does not end with .tar.zst" in done.err) == (2, True)
    done = cli("unpack", file, "--out", tmp_path / "out")
    assert (done.code, "cannot be unpacked" in done.err) == (2, True)
    assert not (tmp_path / "out").exists()
