"""A Ray cluster as an executor: each step where there is room for it, what is timed alone on its node.

A worker makes the bundle in a folder of its own and sends it packed, so that what arrives is held against the hashes
that were recorded there, and then takes its place in one step. A step whose worker, node or bundle is lost is made
again. Every node has its own installation of exporter, of the versions here, and the files that steps name, at the same
paths; a node that has not is refused before anything is made.

One file, though long: what runs here and what runs on a node are two halves of one protocol.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.bundle import archive, layout, publishing
from exporter.core import filesystem, source_lines
from exporter.core.errors import ArtifactError, BundleError, MissingDependency, UsageError
from exporter.core.progress import Listener
from exporter.release import keys
from exporter.release.executor import Outcome, Outcomes, perform
from exporter.release.plan import Step

LOCAL = "ray"  # as an address: the cluster of $RAY_ADDRESS, else this machine's, else a new one
ATTEMPTS = 4  # at a step whose worker is lost
REACH_S = 10.0  # for the head to answer
POLL_S = 5.0  # between two looks at which nodes there are
GRACE_S = 30.0  # for cancelled steps to tidy up, on nodes that are busy too
LIMIT = 1 << 40  # bytes of a bundle
ALIKE = "install the same versions on every node, and provide the same files at the same paths (a shared file system)"
ADDRESS = "give the HOST:PORT that `ray start --head` shows, or ray://HOST:10001 from outside the cluster"
LOST = "see Ray's logs; if memory ran out, set memory_limit_gb"
DISK = "free some space on that node, or set another TMPDIR there"
Node = dict[str, Any]  # as ray.nodes() tells of it


@dataclass(frozen=True)
class Task:
    """A step, with what it takes for granted wherever it is made. Plain data, which travels."""

    step: Step
    home: Path  # what relative paths count from
    versions: dict[str, str]
    files: dict[str, str]  # hashes, by path


@dataclass(frozen=True)
class Made:
    """What comes back of a step: the outcome, or what is wrong with the node's disk; its bundle; if that passes.

    `packed` is an array of bytes, which the object store holds as it is.
    """

    outcome: Outcome | BundleError
    passes: bool = False
    packed: Any = None


@contextmanager
def join(address: str, steps: Sequence[Step]) -> Iterator[Cluster]:
    """The cluster at `LOCAL`, HOST:PORT or ray://HOST:PORT, once it is seen that these steps can be made there.

    MissingDependency without Ray. UsageError for a cluster that cannot be joined, that has no room for one of the
    steps, or whose nodes are not alike.
    """
    with _joined(address) as ray:
        cluster = Cluster(ray)
        cluster.require(steps)
        yield cluster


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # nodes have an installation of their own
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("--cluster needs Ray", "pip install 'exporter[ray]'") from error
    handler = signal.getsignal(signal.SIGTERM)  # Ray sets another
    with contextlib.redirect_stdout(sys.stderr):  # what Ray tells of its nodes is no part of a report
        try:
            _reach(address)
            where = None if address == LOCAL else address
            ray.init(where, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        except Exception as error:
            raise UsageError(f"cannot join the cluster {address}: {source_lines.message(error)}", ADDRESS) from error
        finally:
            signal.signal(signal.SIGTERM, handler)
        try:
            yield ray
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """OSError or ValueError where nobody listens, which Ray finds out after minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != LOCAL:
        socket.create_connection((host, int(port)), REACH_S).close()


class Cluster:
    """A cluster that this process has joined."""

    def __init__(self, ray: Any) -> None:
        """`ray` is the module, which nothing imports that needs no cluster."""
        self.ray = ray

    def require(self, steps: Sequence[Step]) -> None:
        """UsageError for steps that no node has room for, and for nodes that have not what they take for granted."""
        nodes = self.nodes()
        for step in steps:
            if ":" in step.request.device:
                raise UsageError(f"{step.name}: on a cluster, Ray chooses the GPU", 'write devices = ["cuda"]')
            if not any(_fits(step, node) for node in nodes):
                raise UsageError(*_no_room(step))
        tasks = [_task(step) for step in steps]
        asked = [(node["NodeName"], self.start(lacking, tasks, num_cpus=0, **_only(node))) for node in nodes]
        if problems := [f"{name}: {problem}" for name, ref in asked for problem in self._answer(ref)]:
            raise UsageError("\n".join(["the nodes of the cluster differ", *problems]), ALIKE)

    def _answer(self, ref: Any) -> list[str]:
        try:
            return list(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            return [f"exporter does not run there: {source_lines.message(error)}"]

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """As `Executor.run`. What is not timed goes first."""
        current = _Run(self, steps, listener)
        try:
            yield from current.outcomes()
        finally:
            current.cancel()

    def nodes(self) -> list[Node]:
        """Those that can run something now."""
        return [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A reference to what the function will return, on a node that Ray chooses by the options."""
        return self.ray.remote(function).options(max_retries=0, **options).remote(*arguments)


class _Run:
    """The steps of one release."""

    def __init__(self, cluster: Cluster, steps: Sequence[Step], listener: Listener) -> None:
        self.cluster, self.ray, self.listener = cluster, cluster.ray, listener
        self.waiting = sorted(steps, key=lambda step: step.request.bench)
        self.running: dict[Any, tuple[Step, str]] = {}  # with the node that a step has for itself
        self.tried = defaultdict[str, list[str]](list)  # such nodes of the workers that were lost, by step

    def outcomes(self) -> Outcomes:
        while self.waiting or self.running:
            nodes = self.cluster.nodes()
            for step in [step for step in self.waiting if not any(_fits(step, node) for node in nodes)]:
                self.waiting.remove(step)
                yield step, Outcome(None, *_no_room(step))
            self._begin(nodes)
            for ref in self._ended(nodes):
                step, node = self.running.pop(ref)
                made = self._made(ref)
                if isinstance(made, Made):
                    yield step, _arrive(step, made)
                    continue
                self.tried[step.name].append(node)
                if len(self.tried[step.name]) < ATTEMPTS:
                    self.waiting.append(step)
                else:
                    yield step, Outcome(None, f"its worker died {ATTEMPTS} times: {made}", LOST)

    def _begin(self, nodes: list[Node]) -> None:
        """Queue what Ray may choose the node of, and what has a node for itself now."""
        for step in list(self.waiting):
            tried, taken = self.tried[step.name], {node for _, node in self.running.values()}
            free = [node for node in nodes if _fits(step, node) and node["NodeID"] not in taken]
            options, alone = _needs(step), ""
            if step.request.bench and not free:
                continue
            if step.request.bench:
                node = min(free, key=lambda node: tried.count(node["NodeID"]))
                alone = node["NodeID"]
                options |= {"num_cpus": node["Resources"]["CPU"]} | _only(node)
            self.waiting.remove(step)
            self.running[self.cluster.start(make, _task(step), **options)] = step, alone
            self.listener.stage(step.name, "lost, queued again" if tried else "queued")

    def _ended(self, nodes: list[Node]) -> list[Any]:
        """What has ended, after a while; whatever waits for a node that is gone is cancelled, and then ends too."""
        for ref, (step, _) in self.running.items():
            if not any(_fits(step, node) for node in nodes):
                self.ray.cancel(ref)
        return list(self.ray.wait(list(self.running), timeout=POLL_S)[0]) if self.running else []

    def _made(self, ref: Any) -> Made | str:
        """What came back; or how it was lost."""
        try:
            made: Made = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
            return source_lines.message(error)
        return made

    def cancel(self) -> None:
        """End what still runs; what does not end soon ends with its worker, once the cluster is left."""
        for ref in self.running:
            self.ray.cancel(ref)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=GRACE_S)


def _needs(step: Step) -> dict[str, Any]:
    """What Ray is to keep for a step."""
    request = step.request
    return {
        "num_cpus": request.threads,
        "num_gpus": int(request.device != "cpu"),
        "memory": round((request.memory_limit_gb or 0) * 1e9) or None,
        "scheduling_strategy": "SPREAD",
    }


def _fits(step: Step, node: Node) -> bool:
    """Whether a node has enough for a step when nothing else is there."""
    needs, has = _needs(step), node["Resources"]
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return all(has.get(name, 0) >= (needs[option] or 0) for name, option in names.items())


def _no_room(step: Step) -> tuple[str, str]:
    request = step.request
    cpus = "a CPU" if request.threads == 1 else f"{request.threads} CPUs"
    gpu = "" if request.device == "cpu" else " and a GPU"
    memory = f" and {request.memory_limit_gb:g} GB of memory" if request.memory_limit_gb else ""
    cause = f"{step.name}: no node of the cluster has {cpus}{gpu}{memory}"
    return cause, "lower threads or memory_limit_gb, or add a node"


def _only(node: Node) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)}


def _task(step: Step) -> Task:
    return Task(step, Path.cwd(), keys.versions(step.request), keys.files(step.request))


def lacking(tasks: Sequence[Task]) -> list[str]:
    """What tasks take for granted and is not so on this node, in words."""
    problems: list[str] = []
    for task in tasks:
        here = keys.versions(task.step.request)
        names = sorted(name for name in task.versions | here if task.versions.get(name) != here.get(name))
        problems += [f"{name} {here.get(name, 'none')}, not {task.versions.get(name, 'none')}" for name in names]
        with _at_home(task):
            problems += _unlike(task)
    return list(dict.fromkeys(problems))


def _unlike(task: Task) -> list[str]:
    try:
        files = keys.files(task.step.request)
    except OSError as error:
        return [f"there is no file {error.filename}"]
    pairs = ((task.files, files), (files, task.files))
    return [f"{path} differs" for some, others in pairs for path in some if some[path] not in others.values()]


def _at_home(task: Task) -> contextlib.chdir[Path]:
    return contextlib.chdir(task.home if task.home.is_dir() else Path())


def make(task: Task) -> Made:
    """On a node: the step's bundle, made in a folder that goes away, and packed."""
    if problems := lacking([task]):
        return Made(Outcome(None, f"{platform.node()}: {'; '.join(problems)}", ALIKE))
    try:
        with _wakeful(), tempfile.TemporaryDirectory(prefix="exporter-") as folder, _at_home(task):
            return _make(task.step, Path(folder))
    except BundleError as error:
        return Made(BundleError(f"{platform.node()}: {error}", DISK))
    except OSError as error:
        cause = filesystem.error(error, Path(tempfile.gettempdir()))
        return Made(BundleError(f"{platform.node()}: {cause}", DISK))


@contextmanager
def _wakeful() -> Iterator[None]:
    """Let who waits in a system call hear once a second of Ray's cancelling, which sends no signal but sets a flag."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _make(step: Step, folder: Path) -> Made:
    import numpy as np

    outcome = perform(step, place=folder / step.request.out.name)
    if outcome.place is None:
        return Made(outcome)
    archive.pack(outcome.place, packed := folder / "packed")
    return Made(outcome, layout.read_manifest(outcome.place).passes, np.fromfile(packed, np.uint8))


def _arrive(step: Step, made: Made) -> Outcome:
    """Put what came in its place. BundleError for a disk, there or here."""
    if isinstance(made.outcome, BundleError):
        raise made.outcome
    if made.packed is None:
        return made.outcome
    out = step.request.out
    place = out if made.passes else publishing.spare(out, publishing.FAILED)
    try:
        archive.receive(memoryview(made.packed), f"the result of {step.name}", place, LIMIT)
    except ArtifactError as error:
        return Outcome(None, str(error), error.remedy)
    return Outcome(place)
