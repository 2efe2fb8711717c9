"""Publishing a bundle: the lock, staging, the swap, and errors."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.manifests import MANIFEST, manifest, variant

from exporter.bundle import layout, publishing
from exporter.core import filesystem
from exporter.core.errors import BundleError, UsageError
from exporter.core.json_codec import to_json

FORK = multiprocessing.get_context("spawn")
NOBODY = 65534


def publish(out: Path, mark: str = "one") -> Path:
    """Publish a bundle with one artifact that contains `mark`."""
    with publishing.stage(out) as staging:
        (staging.root / "trace.pt").write_text(mark)
        staging.write(manifest(variant(artifact=layout.record(staging.root / "trace.pt"))))
        return staging.publish()


def leftovers(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir() if entry.name.startswith(".")}


def test_publish_into_a_new_place(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "er" / "toy"
    assert publish(out) == out
    assert (out / "trace.pt").read_text() == "one"
    assert layout.read_manifest(out).model.name == "toy"
    assert leftovers(out.parent) == set()


def test_publish_over_a_bundle(tmp_path: Path) -> None:
    publish(tmp_path / "toy", "one")
    publish(tmp_path / "toy", "two")
    assert (tmp_path / "toy" / "trace.pt").read_text() == "two"
    assert leftovers(tmp_path) == set()


def test_publish_where_directories_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_exchange", lambda a, b: False)
    publish(tmp_path / "toy", "one")
    publish(tmp_path / "toy", "two")
    assert (tmp_path / "toy" / "trace.pt").read_text() == "two"
    assert leftovers(tmp_path) == set()


def test_a_bundle_moved_aside_by_a_killed_run_is_restored(tmp_path: Path) -> None:
    """The run was killed between the two renames, or after both, when the old bundle is obsolete."""
    place = publish(tmp_path / "toy", "one")
    place.rename(tmp_path / ".toy.old")
    with publishing.stage(place):
        assert (place / "trace.pt").read_text() == "one"
    assert leftovers(tmp_path) == set()
    shutil.copytree(place, tmp_path / ".toy.old")
    publish(place, "two")
    assert (place / "trace.pt").read_text() == "two"
    assert leftovers(tmp_path) == set()


def test_a_failed_exchange_returns_false(tmp_path: Path) -> None:
    assert publishing._exchange(tmp_path / "a", tmp_path / "b") is False


class Synced:
    """Records the files that `os.fsync` was called for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._files: set[int] = set()
        fsync = os.fsync

        def note(descriptor: int) -> None:
            self._files.add(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)

    def has(self, path: Path) -> bool:
        return path.stat().st_ino in self._files


@pytest.mark.parametrize("there", [False, True])
def test_everything_is_synced_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """This covers files, nested folders, and at the end the parent folder."""
    out = tmp_path / "toy"
    if there:
        publish(out)
    synced = Synced(monkeypatch)
    found: list[bool] = []
    with publishing.stage(out) as staging:
        (staging.root / "trace.pt").write_text("new")
        (staging.logs / "deep").mkdir()
        (staging.logs / "deep" / "a.log").write_text("said")
        (staging.logs / "link").symlink_to("/nowhere")
        staging.write(MANIFEST)
        moves = [(publishing, "_exchange", publishing._exchange), (Path, "rename", Path.rename)]
        for owner, name, move in moves:

            def look(a: Path, b: Path, move: Callable[[Path, Path], object] = move) -> object:
                tree = [staging.root, *(path for path in staging.root.rglob("*") if not path.is_symlink())]
                found.extend(map(synced.has, tree))
                return move(a, b)

            monkeypatch.setattr(owner, name, look)
        staging.publish()
    assert len(found) >= 6
    assert all(found)
    assert synced.has(tmp_path)


def test_a_replaced_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Synced(monkeypatch)
    filesystem.write_atomic(tmp_path / "a.json", "one")
    assert synced.has(tmp_path / "a.json")
    assert synced.has(tmp_path)


def test_directories_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems cannot sync directories; an error for a file is still raised."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", refuse)
    filesystem.sync(tmp_path)
    with pytest.raises(OSError, match="Invalid"):
        filesystem.sync(tmp_path / "file")


def test_several_threads_may_probe_the_space(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(filesystem.probe_space, tmp_path) for _ in range(100)]:
            future.result()
    assert list(tmp_path.iterdir()) == []


def test_publish_into_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    publish(tmp_path / "toy")
    assert (tmp_path / "toy" / "trace.pt").is_file()


def test_a_run_that_raises_leaves_the_last_bundle(tmp_path: Path) -> None:
    publish(tmp_path / "toy")
    with pytest.raises(ZeroDivisionError), publishing.stage(tmp_path / "toy") as staging:  # noqa: PT012
        (staging.root / "trace.pt").write_text("half")
        raise ZeroDivisionError
    assert (tmp_path / "toy" / "trace.pt").read_text() == "one"
    assert leftovers(tmp_path) == set()


def test_an_interrupted_run_is_published_beside_the_last_bundle(tmp_path: Path) -> None:
    publish(tmp_path / "toy")
    with publishing.stage(tmp_path / "toy") as staging:
        staging.write(MANIFEST)
        assert staging.publish_beside(publishing.INTERRUPTED) == tmp_path / "toy.interrupted"
    assert (tmp_path / "toy" / "trace.pt").read_text() == "one"
    assert layout.read_manifest(tmp_path / "toy.interrupted") == MANIFEST


def test_an_interrupted_run_takes_a_free_place(tmp_path: Path) -> None:
    with publishing.stage(tmp_path / "toy") as staging:
        staging.write(MANIFEST)
        assert staging.publish_beside(publishing.INTERRUPTED) == tmp_path / "toy"


def test_an_interrupted_run_does_not_replace_foreign_files(tmp_path: Path) -> None:
    publish(tmp_path / "toy")
    (tmp_path / "toy.interrupted").mkdir()
    (tmp_path / "toy.interrupted" / "thesis.tex").write_text("years of work")
    with pytest.raises(BundleError, match=r"toy\.interrupted"), publishing.stage(tmp_path / "toy") as staging:  # noqa: PT012
        staging.write(MANIFEST)
        staging.publish_beside(publishing.INTERRUPTED)
    assert (tmp_path / "toy.interrupted" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_appears_during_a_run_costs_nothing(tmp_path: Path, there: bool) -> None:
    """The file stays and so does the last bundle; the new one is published beside them."""
    out = tmp_path / "toy"
    if there:
        publish(out)
    words = r"contains (files but|thesis\.tex).*; the new bundle is in .*/toy\.failed$"
    with pytest.raises(BundleError, match=words) as raised, publishing.stage(out) as staging:  # noqa: PT012
        staging.write(MANIFEST)
        out.mkdir(exist_ok=True)
        (out / "thesis.tex").touch()
        held = {*out.iterdir()}
        staging.publish()
    assert "--out" in raised.value.remedy
    assert staging.published == tmp_path / "toy.failed"
    assert layout.read_manifest(tmp_path / "toy.failed") == MANIFEST
    assert {*out.iterdir()} == held
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("moves", [0, 1, 2])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("exchanges", [True, False])
def test_an_interrupt_while_a_bundle_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, there: bool, moves: int
) -> None:
    """It comes after so many renames, or else at the end. Both bundles are kept, or the new one has been published."""
    out, rename, left = tmp_path / "toy", Path.rename, iter(range(moves))
    if there:
        publish(out)
    if not exchanges:
        monkeypatch.setattr(publishing, "_exchange", lambda a, b: False)

    def move(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(self, target)

    def sync(path: Path) -> None:
        if path == tmp_path:
            raise KeyboardInterrupt

    with publishing.stage(out) as staging:
        staging.write(MANIFEST)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            patched.setattr(Path, "rename", move)
            patched.setattr(filesystem, "sync", sync)
            staging.publish()
        needed = 0 if there and exchanges else 2 if there else 1
        assert staging.published == (out if moves >= needed else None)
        if moves < needed:
            place = staging.publish_beside(publishing.INTERRUPTED)
            assert place == staging.published == (tmp_path / "toy.interrupted" if there else out)
            assert not there or (out / "trace.pt").read_text() == "one"
        assert layout.read_manifest(staging.published or out) == MANIFEST
    publish(out, "two")
    assert leftovers(tmp_path) == set()


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    staging = tmp_path / ".toy.staging"
    staging.mkdir()
    (staging / "half.pt").touch()
    (tmp_path / ".toy.lock").write_text("12345")
    publish(tmp_path / "toy")
    assert leftovers(tmp_path) == set()
    assert not (tmp_path / "toy" / "half.pt").exists()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with publishing.stage(tmp_path / "toy"):
        with (
            pytest.raises(BundleError, match=f"in use by another run .process {os.getpid()}") as raised,
            publishing.stage(tmp_path / "toy"),
        ):
            raise AssertionError("two runs at once")
        assert "--out" in raised.value.remedy
        assert (tmp_path / ".toy.lock").exists(), "the second run did not remove the lock"
        publish(tmp_path / "other")
    publish(tmp_path / "toy")


def _hold(out: Path, held: multiprocessing.synchronize.Event) -> None:
    with publishing.stage(out):
        held.set()
        signal.pause()


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    held = FORK.Event()
    holder = FORK.Process(target=_hold, args=(tmp_path / "toy", held))
    holder.start()
    assert held.wait(60)
    with pytest.raises(BundleError, match=f"process {holder.pid}"), publishing.stage(tmp_path / "toy"):
        pass
    holder.kill()
    holder.join()
    publish(tmp_path / "toy")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["thesis.tex"], "contains files but is not a bundle"),
        (["manifest.json", "trace.pt", "notes.txt"], "contains notes.txt, which exporter did not write"),
    ],
)
def test_foreign_files_are_not_replaced(tmp_path: Path, files: list[str], message: str) -> None:
    out = tmp_path / "toy"
    if "manifest.json" in files:
        publish(out)
    out.mkdir(exist_ok=True)
    for name in files:
        (out / name).touch()
    if "manifest.json" in files:
        filesystem.write_atomic(out / "manifest.json", to_json(manifest(variant())))
    with pytest.raises(BundleError, match=message), publishing.stage(out):
        pass
    assert all((out / name).exists() for name in files)


def test_a_bundle_with_a_broken_manifest_may_be_replaced(tmp_path: Path) -> None:
    publish(tmp_path / "toy", "one")
    (tmp_path / "toy" / "manifest.json").write_text("{")
    publish(tmp_path / "toy", "two")
    assert (tmp_path / "toy" / "trace.pt").read_text() == "two"


def test_a_file_or_a_broken_link_in_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "link", "loop"):
        with pytest.raises(BundleError, match=f"{name} is not a directory"), publishing.stage(tmp_path / name):
            pass


def test_a_link_to_a_directory_stays(tmp_path: Path) -> None:
    """The bundle is staged beside the directory, which may be on another file system than the link."""
    real, link = tmp_path / "disk" / "real", tmp_path / "link"
    link.symlink_to(real)
    for mark in ("one", "two"):
        assert publish(link, mark) == link
        assert (link.readlink(), (real / "trace.pt").read_text()) == (real, mark)
    with publishing.stage(link) as staging:
        staging.write(MANIFEST)
        assert {entry.name for entry in real.parent.iterdir()} == {"real", ".real.staging", ".real.lock"}
        with pytest.raises(BundleError, match="in use by another run"), publishing.stage(real):
            pass
        assert staging.publish_beside(publishing.FAILED) == real.with_name("real.failed")
    assert leftovers(tmp_path) == leftovers(real.parent) == set()
    (real / "thesis.tex").touch()
    with pytest.raises(BundleError, match=r"thesis\.tex, which exporter did not write"), publishing.stage(link):
        pass


def test_a_failed_run_takes_the_free_place_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with publishing.stage(tmp_path / "link") as staging:
        staging.write(MANIFEST)
        assert staging.publish_beside(publishing.FAILED) == tmp_path / "link"
    assert layout.read_manifest(tmp_path / "real") == MANIFEST


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a bundle, be behind a link, and have a name that Linux lists with escapes."""
    out = tmp_path / "my \\out, größer"
    publish(out)
    (tmp_path / "link").symlink_to(out)
    listed = str(out.resolve()).replace("\\", r"\134").replace(" ", r"\040")
    text = f"22 1 0:21 / /proc rw - proc proc rw\n23 1 8:1 /out {listed} rw shared:1 - ext4 /dev/sda1 rw\n"
    (tmp_path / "mountinfo").write_text(text)
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "mountinfo")
    for place in (out, tmp_path / "link"):
        with pytest.raises(BundleError, match="is a mount point") as raised, publishing.stage(place):
            pass
        assert raised.value.remedy == f"give a directory inside it, such as {place / 'model'}"
    assert leftovers(tmp_path) == set()
    publish(out.with_name("my"))
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "missing")
    publish(out)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_directory_of_the_same_file_system_is_recognized_as_mounted(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "toy", tmp_path / "toy"], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        with pytest.raises(BundleError, match="toy is a mount point"), publishing.stage(tmp_path / "toy"):
            pass
        publish(tmp_path / "toy" / "model")
    finally:
        subprocess.run(["umount", tmp_path / "toy"], check=True)
    assert (tmp_path / "toy" / "model" / "trace.pt").is_file()


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """Yield a folder of a user without privileges, which that user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


def as_user(function: Callable[[Path], None], folder: Path) -> None:
    """Call the function in a process without privileges."""
    child = FORK.Process(target=_as_user, args=(function, folder))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _as_user(function: Callable[[Path], None], folder: Path) -> None:
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    function(folder)


def _replace_protected(folder: Path) -> None:
    for mark in ("one", "two"):
        place = publish(folder / "toy", mark)
        for path in (*place.rglob("*"), place):
            path.chmod(path.stat().st_mode & ~0o222)
    publish(folder / "toy", "three")


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_write_protected_bundle_is_replaced(users_folder: Path, exchanges: bool) -> None:
    as_user(_replace_protected if exchanges else _replace_protected_in_two_steps, users_folder)
    assert (users_folder / "toy" / "trace.pt").read_text() == "three"
    assert leftovers(users_folder) == set()


def _replace_protected_in_two_steps(folder: Path) -> None:
    publishing._exchange = lambda a, b: False
    _replace_protected(folder)


def test_links_in_a_removed_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o500)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "link").symlink_to(tmp_path / "kept")
    filesystem.remove_tree(tmp_path / "old")
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o500


def _replace_roots(folder: Path) -> None:
    with pytest.raises(BundleError, match=f"toy cannot be replaced: {folder}/toy belongs to another user"):
        publish(folder / "toy", "two")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_bundle_that_could_not_be_removed_is_refused_at_once(users_folder: Path) -> None:
    publish(users_folder / "toy")
    as_user(_replace_roots, users_folder)
    assert (users_folder / "toy" / "trace.pt").read_text() == "one"
    assert leftovers(users_folder) == set()


@pytest.mark.parametrize("ending", ["staging", "old"])
def test_leftovers_that_cannot_be_removed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    publish(tmp_path / "toy")
    left = tmp_path / f".toy.{ending}"
    left.mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    words = rf"\.toy\.{ending}, which an earlier run left, cannot be removed: Permission denied"
    with pytest.raises(BundleError, match=words) as raised, publishing.stage(tmp_path / "toy"):
        pass
    assert "its owner" in raised.value.remedy


def test_a_file_as_a_parent_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = "a part of the path is a file|a file is in its place"
    with pytest.raises(BundleError, match=words), publishing.stage(tmp_path / "file" / "toy"):
        pass


def test_a_directory_that_is_not_writable() -> None:
    with pytest.raises(BundleError, match="cannot write to /proc/"), publishing.stage(Path("/proc/toy")):
        pass


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is exhausted"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "not permitted"),
        (errno.ENOTDIR, "a part of the path is a file"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_errors_of_the_file_system_are_explained(tmp_path: Path, number: int, cause: str) -> None:
    publish(tmp_path / "toy")
    with pytest.raises(BundleError, match=cause) as raised, publishing.stage(tmp_path / "toy") as staging:  # noqa: PT012
        (staging.root / "trace.pt").write_text("half")
        raise OSError(number, os.strerror(number), str(staging.root / "trace.pt"))
    assert "--out" in raised.value.remedy
    assert (tmp_path / "toy" / "trace.pt").read_text() == "one"
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize(
    ("number", "name", "said"),
    [
        (errno.ENOENT, "net.py", "cannot access {folder}/net.py: No such file or directory"),
        (errno.EACCES, "toys/net.py", "cannot access {folder}/toys/net.py: Permission denied"),
        (errno.EIO, "", "cannot access a file: Input/output error"),
        (errno.ENOSPC, "", "cannot write to {folder}/toy: the disk is full"),
        (errno.ENOSPC, "cache/a", "cannot write to {folder}/cache/a: the disk is full"),
        (errno.EACCES, ".toy.lock", "cannot write to {folder}/.toy.lock: permission denied"),
        (errno.EACCES, "toy/a", "cannot write to {folder}/toy/a: permission denied"),
        (errno.EACCES, "", "cannot write to {folder}: permission denied"),
        (errno.EMFILE, "net.py", "too many open files"),
    ],
)
def test_only_errors_of_writing_are_reported_as_such(tmp_path: Path, number: int, name: str, said: str) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "net.py").touch()
    place = tmp_path / name if name or number == errno.EACCES else None
    with pytest.raises(UsageError) as raised, publishing.stage(tmp_path / "toy"):
        raise OSError(number, os.strerror(number), place and str(place))
    assert str(raised.value) == said.format(folder=tmp_path)
    assert isinstance(raised.value, BundleError) is not said.startswith("cannot access")


@pytest.mark.parametrize("error", [TimeoutError("slow"), BrokenPipeError(errno.EPIPE, "Broken pipe")])
def test_an_error_that_may_be_a_bug_is_not_explained(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)), publishing.stage(tmp_path / "toy"):
        raise error
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize(
    ("number", "cause", "remedy"),
    [
        (errno.EMFILE, "too many open files", "ulimit -n"),
        (errno.EFBIG, "it exceeds the limit of file sizes", "ulimit -f"),
        (errno.EAGAIN, "the system starts no further process", "ulimit -u"),
    ],
)
def test_another_folder_is_no_remedy_for_limits(tmp_path: Path, number: int, cause: str, remedy: str) -> None:
    found = filesystem.error(OSError(number, os.strerror(number), str(tmp_path / "toy")), tmp_path / "toy")
    assert cause in str(found)
    assert remedy in found.remedy
    assert "--out" not in found.remedy


def test_a_tree_is_linked(tmp_path: Path) -> None:
    (tmp_path / "one" / "in").mkdir(parents=True)
    (tmp_path / "one" / "in" / "file").write_text("text")
    (tmp_path / "one" / "link").symlink_to("in/file")
    filesystem.link_tree(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / "in" / "file").samefile(tmp_path / "one" / "in" / "file")
    assert (tmp_path / "two" / "link").readlink() == Path("in/file")


def test_the_first_error_of_a_tree_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file").touch()
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(filesystem.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left") as raised:
        filesystem.link_tree(tmp_path / "one", tmp_path / "two")
    assert raised.value.errno == errno.ENOSPC


def test_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="the disk is full"), publishing.stage(tmp_path / "toy") as staging:  # noqa: PT012
        (staging.root / "manifest.json.new").symlink_to("/dev/full")
        staging.write(MANIFEST)
    assert leftovers(tmp_path) == set()


def _stage_with_little_room(out: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    try:
        with publishing.stage(out):
            os._exit(3)
    except BundleError as error:
        os._exit(0 if "it exceeds the limit of file sizes" in str(error) else 4)


def test_lack_of_space_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    child = FORK.Process(target=_stage_with_little_room, args=(tmp_path / "toy",))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert leftovers(tmp_path) == set()


def test_atomic_writes_replace_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    filesystem.write_atomic(path, "one")
    filesystem.write_atomic(path, "two")
    assert path.read_text() == "two"

    def broken(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="full"):
        filesystem.write_atomic(path, "three")
    assert path.read_text() == "two"
