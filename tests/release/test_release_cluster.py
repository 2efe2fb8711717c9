"""Releases on a Ray cluster of several nodes, all on this machine: results, lost nodes and refusals."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from support import releases
from support.commands import RECIPES, Cli
from support.processes import children, gone, wait_for
from support.releases import planned

from exporter.bundle import archive
from exporter.bundle import layout as bundles
from exporter.core import filesystem
from exporter.core.errors import BundleError, UsageError
from exporter.core.progress import Listener
from exporter.release import cluster, executor, keys, run
from exporter.release.plan import Step


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head node with one CPU; tests add further nodes."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray") as folder:
        patch.setenv("RAY_TMPDIR", folder)  # a short path, because socket paths have a length limit
        patch.setenv("TMPDIR", folder)
        unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        found = Cluster(True, head_node_args={"num_cpus": 1, **unused})
        yield found
        found.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with copies of the recipes."""
    for name in ("far.py", "recipes_shared.py", "broken.py"):
        shutil.copy(RECIPES / name, tmp_path / name)
    return tmp_path


def steps_of(folder: Path, *names: str, settings: str = "bench = false\ntargets = ['trace']") -> list[Step]:
    models = "".join(f'[[models]]\nmodel = "{folder}/{name}"\n' for name in names)
    return planned(folder, f"{settings}\nthreads = 1\n{models}")


def begun(folder: Path) -> list[int]:
    """Return the nodes on which a model waits or has waited."""
    log = folder / "begun"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


class Told(Listener):
    """A listener that records every event."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []

    def stage(self, variant: str, stage: str) -> None:
        self.stages.append((variant, stage))


def settled(place: Path | None) -> Any:
    """Return the part of a bundle's record that does not depend on where or how fast it was built."""
    found = json.loads((place / bundles.MANIFEST).read_text()) if place else {}
    (variant,) = found["variants"]
    kept = {name: value for name, value in variant.items() if name not in ("lifecycle", "sessions")}
    return found["contract"], found["golden"], found["command"], found["status"], kept


@pytest.mark.usefixtures("lent_zygote")  # for the bundle that is built here
def test_a_step_on_a_killed_node_runs_again(nodes: Cluster, folder: Path) -> None:
    """One of two nodes is killed. The bundle of its step is identical to one built without a cluster."""
    other = nodes.add_node(num_cpus=1)
    settings = "bench = false\ntargets = ['trace', 'script']"
    steps, told = steps_of(folder, "far.py:held", settings=settings), Told()

    def kill() -> None:
        try:
            wait_for(lambda: len(begun(folder)) == 2, seconds=400)
            nodes.remove_node(other, allow_graceful=False)
        finally:
            (folder / "go").touch()

    killer = threading.Thread(target=kill)
    with cluster.join(nodes.address, steps) as joined:
        killer.start()
        rows = run.run(steps, steps, folder / "out", False, joined, told)
        killer.join()
    assert len(set(begun(folder))) == 2, "one step on each node"
    assert sorted(stage for _, stage in told.stages) == ["lost, queued again", "queued", "queued"]
    assert [row.reason for row in rows] == ["", ""]
    (folder / "out").rename(folder / "far")
    (lost,) = (step for step in steps if (step.name, "lost, queued again") in told.stages)
    (alone,) = run.run([lost], [lost], folder / "out", False, executor.Local(), Listener())
    assert settled(folder / "far" / lost.name) == settled(alone.place)


def test_timed_steps_have_a_node_each_and_end_on_interrupt(nodes: Cluster, folder: Path) -> None:
    """Each step requests one CPU but gets a whole node, and the next step waits. Nothing is left behind."""
    larger = nodes.add_node(num_cpus=2)
    left = temporary()
    steps, told = steps_of(folder, "far.py:held", settings="targets = ['trace', 'script', 'export']"), Told()
    seen: list[Any] = []

    def look_and_interrupt() -> None:
        try:
            wait_for(lambda: len(begun(folder)) == 2, seconds=400)
            seen.extend([ray.available_resources().get("CPU", 0), len(set(begun(folder))), list(told.stages)])
            seen.append([pid for node in begun(folder) for pid in children(node) if "exporter" in command_of(pid)])
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    looking = threading.Thread(target=look_and_interrupt)
    with cluster.join(nodes.address, steps) as joined:
        looking.start()
        with pytest.raises(KeyboardInterrupt):
            run.run(steps, steps, folder / "out", False, joined, told)
        looking.join()
    free, places, stages, family = seen
    assert (free, places, stages) == (0, 2, [(step.name, "queued") for step in steps[:2]])
    assert family
    wait_for(lambda: all(map(gone, family)))
    assert temporary() == left
    assert [file.name for file in (folder / "out").rglob("*") if file.is_file()] == ["release.json"]
    nodes.remove_node(larger)


def temporary() -> set[Path]:
    """Return the folders in which bundles are being built. A killed node leaves its folders."""
    return set(Path(os.environ["TMPDIR"]).glob("exporter-*"))


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_a_failed_step_gets_a_row(nodes: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not run, a worker that dies each time, and an invalid request."""
    monkeypatch.setattr(cluster, "ATTEMPTS", 2)
    steps = steps_of(folder, "broken.py:forward_raises", "far.py:deadly", "far.py:held")
    steps[2] = replace(steps[2], request=replace(steps[2].request, fullgraph=True))
    (folder / "out").mkdir()
    releases.make(steps[0].request)  # the last good bundle
    good = (steps[0].request.out / bundles.MANIFEST).read_bytes()
    with cluster.join(nodes.address, steps) as joined:
        raises, deadly, refused = run.run(steps, steps, folder / "out", False, joined, Listener())
    assert raises.reason.startswith("failed at prepare")
    assert "forward does not work" in raises.reason
    assert raises.place == steps[0].request.out.with_name("trace.failed")
    assert bundles.read_manifest(raises.place).status == "failed"
    assert (steps[0].request.out / bundles.MANIFEST).read_bytes() == good
    assert deadly.reason.startswith("failed at prepare: its worker died 2 times: ")
    assert (deadly.place, bool(deadly.remedy)) == (None, True)
    assert refused.reason == "failed at prepare: --fullgraph applies only to variants compiled just in time"


def test_arriving_bundles_are_verified(tmp_path: Path) -> None:
    """An altered bundle fails its step; a disk error, on the node or here, ends the release."""
    (step, *_) = planned(tmp_path, "bench = false\n[[models]]\nmodel = 'bert'\n")
    (tmp_path / "out").mkdir()
    releases.make(step.request)
    archive.pack(step.request.out, tmp_path / "packed")
    shutil.rmtree(step.request.out)
    packed = bytearray((tmp_path / "packed").read_bytes())
    made = cluster.Made(executor.Outcome(Path("/far")), True, packed)
    assert cluster._arrive(step, made) == executor.Outcome(step.request.out)
    good = (step.request.out / bundles.MANIFEST).read_bytes()
    worse = cluster.Made(executor.Outcome(Path("/far")), False, packed)
    spare = step.request.out.with_name(step.request.out.name + ".failed")
    assert cluster._arrive(step, worse) == executor.Outcome(spare)
    packed[-1] ^= 1
    assert "the result of bert/cpu/trace cannot be unpacked" in cluster._arrive(step, made).reason
    assert (step.request.out / bundles.MANIFEST).read_bytes() == good
    (step.request.out / "mine").touch()
    packed[-1] ^= 1
    with pytest.raises(BundleError, match="contains mine, which exporter did not write"):
        cluster._arrive(step, made)
    with pytest.raises(BundleError, match="node: the disk is full"):
        cluster._arrive(step, cluster.Made(BundleError("node: the disk is full")))


@pytest.mark.parametrize("address", ["foo", "host:", ":6379", "host:port", "ray://host", "host:99999", "host:-1"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=rf"^--cluster {address} is not ray, HOST:PORT or ray://HOST:PORT$"):
        cluster.join(address, []).__enter__()


@pytest.mark.parametrize(
    ("elsewhere", "words", "remedy"),
    [
        ("", "cannot join or start a cluster on this machine: slow", "ray start --head"),
        ("host:1", "cannot join the cluster at RAY_ADDRESS, host:1: slow", "unset RAY_ADDRESS"),
    ],
)
def test_the_remedy_for_a_cluster_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, elsewhere: str, words: str, remedy: str
) -> None:
    """No address was given, so no other address is the remedy."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("slow")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setenv("RAY_ADDRESS", elsewhere)
    with pytest.raises(UsageError) as raised:
        cluster.join("ray", []).__enter__()
    assert (str(raised.value), remedy in raised.value.remedy) == (words, True)


def test_nodes_with_different_packages_or_files_are_refused(
    nodes: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(folder, "far.py:held")
    here = keys.versions(steps[0].request)
    file = str(folder / "far.py")
    monkeypatch.setattr(keys, "versions", lambda request: here | {"torch": "1.0", "timm": "9"})
    monkeypatch.setattr(keys, "files", lambda request: {file: "0"})
    with pytest.raises(UsageError) as raised, cluster.join(nodes.address, steps):
        raise AssertionError
    said = str(raised.value)
    assert f": torch {here['torch']}, not 1.0\n" in said
    assert f": {file} differs\n" in said
    assert raised.value.remedy


def test_a_node_that_is_lost_while_nodes_are_compared_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = steps_of(folder, "far.py:held")
    nodes = [{"NodeID": name, "NodeName": name, "Resources": {"CPU": 1}} for name in ("kept", "lost")]
    alive = iter([nodes, nodes[:1]])
    monkeypatch.setattr(cluster.Cluster, "nodes", lambda self: next(alive))
    monkeypatch.setattr(cluster, "_only", lambda node: {"node": node["NodeID"]})
    monkeypatch.setattr(cluster.Cluster, "start", lambda self, function, tasks, num_cpus, node: node)
    answers = {"kept": [], "lost": ["exporter does not run there: the node does not exist any more"]}
    monkeypatch.setattr(cluster.Cluster, "_answer", lambda self, ref: answers[ref])
    cluster.Cluster(None).require(steps)
    assert next(alive, None) is None


def test_a_step_whose_recipe_changed_does_not_begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (step, *_) = steps_of(folder, "far.py:held")
    step = replace(step, key=keys.key(step.request), files=keys.paths(step.request))
    node = {"NodeID": "one", "NodeName": "one", "Resources": {"CPU": 1}}
    monkeypatch.setattr(cluster.Cluster, "nodes", lambda self: [node])
    (folder / "far.py").write_text((folder / "far.py").read_text() + "\n# changed")
    changed = executor.Outcome(None, executor.CHANGED, executor.AGAIN)
    assert list(cluster.Cluster(None).run([step], Listener())) == [(step, changed)]


def test_a_file_missing_on_a_node_is_named(folder: Path) -> None:
    (step, *_) = steps_of(folder, "far.py:held")
    task = cluster._task(step)
    assert cluster.lacking([task]) == []
    (folder / "recipes_shared.py").write_text("x = 1")
    assert cluster.lacking([task]) == [f"{folder}/recipes_shared.py differs"]
    (folder / "far.py").unlink()
    assert cluster.lacking([task]) == [f"there is no file {folder}/far.py"]
    made = cluster.make(task)
    assert isinstance(made.outcome, executor.Outcome)
    assert (made.packed, f": there is no file {folder}/far.py" in made.outcome.reason) == (None, True)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space, or set another TMPDIR on that node"),
        (errno.EMFILE, "raise the limit of open files, as with ulimit -n"),
        (errno.EFBIG, "raise the limit, as with ulimit -f"),
        (errno.EAGAIN, filesystem.MORE_PROCESSES),
    ],
)
@pytest.mark.parametrize("explained", [False, True])
def test_a_limit_of_a_node_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str, explained: bool
) -> None:
    (step, *_) = steps_of(folder, "far.py:held")
    monkeypatch.setattr(cluster, "lacking", lambda _: [])
    monkeypatch.setattr(cluster, "_interruptible", contextlib.nullcontext)

    def fails(*_: object, **__: object) -> None:
        error = OSError(number, os.strerror(number))
        if explained:
            raise filesystem.error(error, folder) from error
        raise error

    monkeypatch.setattr(cluster, "perform", fails)
    made = cluster.make(cluster._task(step))
    assert isinstance(made.outcome, BundleError)
    assert made.outcome.remedy == remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 64}, "held/cpu/trace: no node of the cluster has 64 CPUs"),
        ({"device": "cuda"}, "held/cpu/trace: no node of the cluster has a CPU and a GPU"),
        ({"memory_limit_gb": 1e6}, "has a CPU and 1e+06 GB of memory"),
        ({"device": "cuda:1"}, "on a cluster, Ray chooses the GPU"),
    ],
)
def test_a_step_that_fits_no_node_is_refused(
    nodes: Cluster, folder: Path, changes: dict[str, Any], message: str
) -> None:
    (step, *_) = steps_of(folder, "far.py:held")
    with (
        pytest.raises(UsageError) as raised,
        cluster.join(nodes.address, [replace(step, request=replace(step.request, **changes))]),
    ):
        raise AssertionError
    assert message in str(raised.value)


def test_the_command(nodes: Cluster, folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    steps_of(folder, "far.py:held")
    (folder / "go").touch()
    path = folder / "release.toml"
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    done = cli("release", path, "--cluster", "ray", "--format", "json")
    assert (done.code, json.loads(done.out)["status"]) == (0, "passed")
    assert "held/cpu/trace           queued" in done.err
    done = cli("release", path, "--cluster", "ray", "--jobs", "2")
    assert (done.code, "--jobs applies to this machine" in done.err) == (2, True)
    done = cli("release", path, "--cluster", "127.0.0.1:1")
    assert (done.code, "cannot join the cluster 127.0.0.1:1" in done.err) == (2, True)
    monkeypatch.setitem(sys.modules, "ray", None)
    done = cli("release", path, "--cluster", "ray")
    assert (done.code, "pip install 'exporter[ray]'" in done.err) == (2, True)
