"""Run the steps of a release on a Ray cluster. A step that is timed has a node to itself.

A worker builds the bundle in a temporary folder and sends it packed. The bundle is verified here against the hashes
recorded on the node, and then moved into place atomically. A step whose worker, node or bundle is lost runs again.
Every node needs its own installation of exporter, with the same versions as here, and the files that steps name, at the
same paths. A cluster with a node that lacks any of these is refused before any step starts.

This file is long because the code that runs here and the code that runs on a node implement one protocol.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exporter.bundle import archive, layout, publishing
from exporter.core import filesystem, source_lines
from exporter.core.errors import ArtifactError, BundleError, MissingDependency, UsageError
from exporter.core.progress import Listener
from exporter.release import keys
from exporter.release.executor import AGAIN, CHANGED, Outcome, Outcomes, is_changed, perform
from exporter.release.plan import Step

LOCAL = "ray"  # an address: the cluster at $RAY_ADDRESS, else the one on this machine, else a new one
ATTEMPTS = 4  # per step, when workers are lost
REACH_S = 10.0  # timeout for connecting to the head
POLL_S = 5.0  # interval between two polls of the list of nodes
GRACE_S = 30.0  # time for cancelled steps to clean up, even on busy nodes
LIMIT = 1 << 40  # maximum size of a bundle, in bytes
ALIKE = "install the same versions on every node, and provide the same files at the same paths (a shared file system)"
FORMS = "ray, HOST:PORT or ray://HOST:PORT"
ADDRESS = "give the HOST:PORT that `ray start --head` shows, or ray://HOST:10001 from outside the cluster"
START = "see Ray's logs in /tmp/ray; if it starts slowly, start it before (`ray start --head`; `ray stop` ends it)"
LOST = "see Ray's logs; if memory ran out, set memory_limit_gb"
PLACE = "set another TMPDIR on that node"
Node = dict[str, Any]  # one item of ray.nodes()


@dataclass(frozen=True)
class Task:
    """A step and what it requires of the node that runs it. Plain data, so it can be pickled."""

    step: Step
    home: Path  # the base of relative paths
    versions: dict[str, str]
    files: dict[str, str]  # hashes, by path


@dataclass(frozen=True)
class Made:
    """The result of a step: its outcome, or the error of the node's disk, and the packed bundle.

    `passes` says whether the bundle passes. `packed` is an array of bytes, which the object store holds without a copy.
    """

    outcome: Outcome | BundleError
    passes: bool = False
    packed: Any = None


@contextmanager
def join(address: str, steps: Sequence[Step]) -> Iterator[Cluster]:
    """Join the cluster at `LOCAL`, HOST:PORT or ray://HOST:PORT and check that it can run these steps.

    Raises MissingDependency if Ray is not installed. Raises UsageError if the cluster cannot be joined, if no node has
    the resources for one of the steps, or if the nodes differ.
    """
    with _joined(address) as ray:
        cluster = Cluster(ray)
        cluster.require(steps)
        yield cluster


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    where = _place(address)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # every node has its own installation
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("--cluster requires Ray", "pip install 'exporter[ray]'") from error
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for reports, not for Ray's messages
        try:
            if where:  # Ray itself takes minutes to notice that nothing listens there
                socket.create_connection(where, REACH_S).close()
            at = None if where is None else address
            ray.init(at, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        except Exception as error:
            raise UsageError(*_unreachable(address, where is None, source_lines.message(error))) from error
        finally:
            signal.signal(signal.SIGTERM, handler)
        try:
            yield ray
        finally:
            ray.shutdown()


def _place(address: str) -> tuple[str, int] | None:
    """Return the host and port of an address, or None for `LOCAL`. Raises UsageError if it has another form."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == LOCAL:
        return None
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"--cluster {address} is not {FORMS}", ADDRESS)
    return host, int(port)


def _unreachable(address: str, local: bool, cause: str) -> tuple[str, str]:
    """Return why a cluster cannot be joined, and the remedy."""
    if not local:
        return f"cannot join the cluster {address}: {cause}", ADDRESS
    if given := os.environ.get("RAY_ADDRESS"):
        return f"cannot join the cluster at RAY_ADDRESS, {given}: {cause}", "unset RAY_ADDRESS, or mend it"
    return f"cannot join or start a cluster on this machine: {cause}", START


class Cluster:
    """A cluster that this process has joined."""

    def __init__(self, ray: Any) -> None:
        """Take the module `ray`, which is imported only for a cluster."""
        self.ray = ray

    def require(self, steps: Sequence[Step]) -> None:
        """Raise UsageError if no node has the resources for a step, or if a node lacks what the steps require.

        A node that is lost meanwhile no longer counts.
        """
        tasks = [_task(step) for step in steps]
        asked: dict[str, list[str]] = {}
        while (nodes := self._fitting(steps)).keys() - asked.keys():
            new = {key: node for key, node in nodes.items() if key not in asked}
            refs = {key: self.start(lacking, tasks, num_cpus=0, **_only(node)) for key, node in new.items()}
            asked |= {key: self._answer(ref) for key, ref in refs.items()}
        problems = [f"{node['NodeName']}: {problem}" for key, node in nodes.items() for problem in asked[key]]
        if problems:
            raise UsageError("\n".join(["the nodes of the cluster differ", *problems]), ALIKE)

    def _fitting(self, steps: Sequence[Step]) -> dict[str, Node]:
        """Return the nodes by their ID. Raises UsageError if none has the resources for one of the steps."""
        nodes = self.nodes()
        for step in steps:
            if ":" in step.request.device:
                raise UsageError(f"{step.name}: on a cluster, Ray chooses the GPU", 'set devices = ["cuda"]')
            if not any(_fits(step, node) for node in nodes):
                raise UsageError(*_no_room(step))
        return {node["NodeID"]: node for node in nodes}

    def _answer(self, ref: Any) -> list[str]:
        try:
            return list(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            return [f"exporter does not run there: {source_lines.message(error)}"]

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """Run the steps as `Executor.run` does. Steps that are not timed start first."""
        current = _Run(self, steps, listener)
        try:
            yield from current.outcomes()
        finally:
            current.cancel()

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and have a CPU."""
        return [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Start the function on a node that Ray chooses by the options, and return a reference to its result."""
        return self.ray.remote(function).options(max_retries=0, **options).remote(*arguments)


class _Run:
    """The steps of one release."""

    def __init__(self, cluster: Cluster, steps: Sequence[Step], listener: Listener) -> None:
        self.cluster, self.ray, self.listener = cluster, cluster.ray, listener
        self.waiting = sorted(steps, key=lambda step: step.request.bench)
        self.running: dict[Any, tuple[Step, str]] = {}  # with the ID of the reserved node, or ""
        self.tried = defaultdict[str, list[str]](list)  # by step: one node ID, or "", for each lost worker

    def outcomes(self) -> Outcomes:
        while self.waiting or self.running:
            nodes = self.cluster.nodes()
            for step in [step for step in self.waiting if not any(_fits(step, node) for node in nodes)]:
                self.waiting.remove(step)
                yield step, Outcome(None, *_no_room(step))
            for step in self._begin(nodes):
                yield step, Outcome(None, CHANGED, AGAIN)
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

    def _begin(self, nodes: list[Node]) -> list[Step]:
        """Queue the steps that may run on any node, and the timed steps that a free node can be reserved for.

        Return those that must not begin, because their keys have changed since the release began.
        """
        changed = []
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
            if is_changed(step):
                changed.append(step)
                continue
            self.running[self.cluster.start(make, _task(step), **options)] = step, alone
            self.listener.stage(step.name, "lost, queued again" if tried else "queued")
        return changed

    def _ended(self, nodes: list[Node]) -> list[Any]:
        """Wait up to POLL_S and return what has ended. Cancel the steps that no remaining node has resources for."""
        for ref, (step, _) in self.running.items():
            if not any(_fits(step, node) for node in nodes):
                self.ray.cancel(ref)
        return list(self.ray.wait(list(self.running), timeout=POLL_S)[0]) if self.running else []

    def _made(self, ref: Any) -> Made | str:
        """Return the result, or the reason why it was lost."""
        try:
            made: Made = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError as error:
            return source_lines.message(error)
        return made

    def cancel(self) -> None:
        """Cancel the running steps. A step that outlasts GRACE_S ends with its worker when Ray shuts down."""
        for ref in self.running:
            self.ray.cancel(ref)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=GRACE_S)


def _needs(step: Step) -> dict[str, Any]:
    """Return the options that reserve a step's resources in Ray."""
    request = step.request
    return {
        "num_cpus": request.threads,
        "num_gpus": int(request.device != "cpu"),
        "memory": round((request.memory_limit_gb or 0) * 1e9) or None,
        "scheduling_strategy": "SPREAD",
    }


def _fits(step: Step, node: Node) -> bool:
    """Return whether an idle node has the resources for a step."""
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
    step = replace(step, key="")  # the key counts this machine, so a node has another one and compares files instead
    return Task(step, Path.cwd(), keys.versions(step.request), keys.files(step.request))


def lacking(tasks: Sequence[Task]) -> list[str]:
    """Return a message for each version or file that the tasks require and that differs on this node."""
    problems: list[str] = []
    for task in tasks:
        here = keys.versions(task.step.request)
        names = sorted(name for name in task.versions | here if task.versions.get(name) != here.get(name))
        problems += [f"{name} {here.get(name, 'none')}, not {task.versions.get(name, 'none')}" for name in names]
        with _at_home(task):
            problems += _differing_files(task)
    return list(dict.fromkeys(problems))


def _differing_files(task: Task) -> list[str]:
    try:
        files = keys.files(task.step.request)
    except OSError as error:
        return [f"there is no file {error.filename}"]
    pairs = ((task.files, files), (files, task.files))
    return [f"{path} differs" for some, others in pairs for path in some if some[path] not in others.values()]


def _at_home(task: Task) -> contextlib.chdir[Path]:
    return contextlib.chdir(task.home if task.home.is_dir() else Path())


def make(task: Task) -> Made:
    """On a node: run the step in a temporary folder and return its bundle, packed."""
    if problems := lacking([task]):
        return Made(Outcome(None, f"{platform.node()}: {'; '.join(problems)}", ALIKE))
    try:
        with _interruptible(), tempfile.TemporaryDirectory(prefix="exporter-") as folder, _at_home(task):
            return _make(task.step, Path(folder))
    except BundleError as error:
        return Made(_explained(error.__cause__ if isinstance(error.__cause__, OSError) else error))
    except OSError as error:
        return Made(_explained(error))


def _explained(error: BundleError | OSError) -> BundleError:
    """Return an error of this node, with a remedy for the temporary folder that the step was in."""
    if isinstance(error, OSError):
        error = filesystem.error(error, Path(tempfile.gettempdir()), PLACE)
    return BundleError(f"{platform.node()}: {error}", error.remedy)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Interrupt system calls once a second: Ray cancels by setting a flag, which a blocking call would not notice."""
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
    """Move the received bundle into place. Raises BundleError if a disk fails, on the node or here."""
    if isinstance(made.outcome, BundleError):
        raise made.outcome
    if made.packed is None:
        return made.outcome
    out = step.request.out
    place = out if made.passes else publishing.spare(out, publishing.FAILED)
    try:
        archive.receive(memoryview(made.packed), f"the result of {step.name}", place, LIMIT)
    except ArtifactError as error:
        return Outcome(None, str(error), error.remedy, made.outcome.seconds)
    return replace(made.outcome, place=place)
