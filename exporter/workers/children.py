"""One job in one process: a result, or an error that says how the process ended.

Jobs are forked from the zygote, each in a process group of its own, so that whatever a job started (compilers, workers)
ends with it.

One file, though long: a job, the zygote that forks it and how both end share the rules for processes and signals.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from exporter.core import filesystem, processes
from exporter.core.errors import Blame, JobError

LOG_LINES = 30
# For processes side by side: threads that wait sleep, where they would spin on a core that another one needs. What is
# timed runs alone and without this.
SIDE_BY_SIDE = {"OMP_WAIT_POLICY": "PASSIVE"}
# What torch.export takes long to import, for runs that need it. On the CPU alone: meanwhile it may look for GPUs, which
# a zygote must not.
EXPORTING = ("torch._dynamo", "torch.export._trace")
BACKGROUND = 10  # the niceness of jobs that are not the longest of their run


@dataclass
class Child:
    """A running job: its socket, its process group, its log."""

    name: str
    channel: socket.socket
    group: int
    log: Path
    finished: bool = False

    def __post_init__(self) -> None:
        self.lines: TextIO = self.channel.makefile("r", encoding="utf-8", newline="\n")

    def wait(self, timeout: float | None) -> Any:
        """What the job returned. Raises what it raised, or JobError when it hung, was killed or crashed."""
        try:
            return self.conclude(self.readline(timeout), timeout)
        except TimeoutError:
            raise self._too_long(timeout) from None

    def expect(self, kind: str, timeout: float | None) -> Any:
        """A message that the job sends before it ends. Raises as `wait` when the job ended without it."""
        try:
            line = self.readline(timeout)
            if line:
                found, value = self._read(line)
                if found == kind:
                    return value
            return self.conclude(line, timeout)
        except TimeoutError:
            raise self._too_long(timeout) from None

    def conclude(self, line: str, timeout: float | None) -> Any:
        """What the job's last lines mean, from `line` on: as `wait`."""
        outcome: tuple[str, Any] | None = None
        while line:
            kind, value = self._read(line)
            if kind == "exit":
                self.finished = True
                self.close()
                return self._outcome(outcome, value)
            outcome = (kind, value)
            line = self.readline(timeout)
        return self._outcome(outcome, None)

    def _read(self, line: str) -> tuple[str, Any]:
        """A message. JobError where it is none: user code has written there, or what it sent cannot be read."""
        try:
            kind, value = pickle.loads(bytes.fromhex(line))
        except Exception as error:  # whatever broken pickles raise
            self.kill()
            cause = f"{self.name} sent what is no message ({type(error).__name__}: {str(error)[:200]})"
            remedy = "see that the recipe's code leaves pickle and descriptors that it did not open alone"
            raise JobError(cause, remedy, self.tail()) from error
        return kind, value

    def say(self, text: str) -> None:
        """Send the job a line; nothing where it has ended, which `wait` then tells."""
        with contextlib.suppress(OSError):
            self.channel.sendall(f"{text}\n".encode())

    def readline(self, timeout: float | None) -> str:
        """The next line that is not empty; "" at the end. TimeoutError after `timeout` seconds."""
        self.channel.settimeout(timeout)
        try:
            while (line := self.lines.readline()) == "\n":
                pass
            return line
        except (ConnectionError, ValueError):
            return ""

    def _outcome(self, outcome: tuple[str, Any] | None, code: int | None) -> Any:
        if outcome is None:
            raise ended(self.name, code, self.tail())
        kind, value = outcome
        if kind == "error":
            raise value
        if kind == "crash":
            said, blame = value
            raise JobError(said, "", self.tail(), blame=blame)
        return value

    def _too_long(self, timeout: float | None) -> JobError:
        self.kill()
        return JobError(f"{self.name} took longer than {timeout:.0f} s and was stopped", "raise --timeout", self.tail())

    def tail(self) -> str:
        """The last lines of the log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return ""

    def kill(self) -> None:
        """End the job and all that it started; nothing when it has ended."""
        if self.finished:
            return
        started = processes.descendants(self.group)  # a daemon among them is in a group of its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)
        processes.end(started)
        self.finished = True  # its number may soon be another's
        self.close()

    def close(self) -> None:
        """Close our end of the socket."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)  # whoever still reads wakes up
        self.lines.close()
        self.channel.close()


def stand_back(niceness: int, pid: int = 0) -> None:
    """Let a process (this one, where none is named) yield to others; never the other way, which needs privileges."""
    if niceness > os.getpriority(os.PRIO_PROCESS, pid):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)


def ended(what: str, code: int | None, log: str, remedy: str = "") -> JobError:
    """The error of a process that ended with this exit code, minus its signal, and no result."""
    if code is None:
        return JobError(f"{what} was killed from outside", remedy, log)
    if code >= 0:
        return JobError(f"{what} ended with exit code {code} and no result", remedy, log)
    known = -code in set(signal.Signals)
    name = signal.Signals(-code).name if known else f"signal {-code}"
    hint = {"SIGKILL": " (out of memory?)", "SIGILL": " (built for another processor?)"}.get(name, "")
    cause = {"SIGKILL": "killed", "SIGILL": "illegal-instruction"}.get(name)
    return JobError(f"{what} was ended by {name}{hint}", remedy, log, name, Blame(cause) if cause else None)


class Zygote:
    """The process that jobs are forked from. Use as a context manager; leaving it ends every job.

    `environment` is added to the environment of every job, which finds `modules` imported beside torch. Safe to use
    from several threads.
    """

    def __init__(self, environment: dict[str, str] | None = None, modules: tuple[str, ...] = ()) -> None:
        filesystem.require_directory()
        self.environment = environment or {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "exporter.workers.forkserver", str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **self.environment},
            )
        self._lock = threading.Lock()
        self._ready = False
        self._closed = False
        self._children: list[Child] = []

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether jobs can still be forked from it."""
        return not self._closed and self._process.poll() is None

    def lend(self) -> Zygote:
        """This zygote for one of several users: closing what is returned ends that user's jobs alone."""
        return _Lent(self)

    def spawn(self, name: str, function: str, arguments: dict[str, Any], log: Path) -> Child:
        """Start `module:function(channel, **arguments)` in a child; what it prints goes to the end of `log`."""
        request = pickle.dumps((function, arguments))
        log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as until_started, self._lock, log.open("ab") as output:
            self._await_ready()
            ours, theirs = socket.socketpair()
            until_started.callback(ours.close)
            with theirs:
                group = self._fork(request, theirs, output)
            until_started.pop_all()
            child = Child(name, ours, group, log)
            self._children = [*(one for one in self._children if not one.finished), child]
        return child

    def _fork(self, request: bytes, theirs: socket.socket, output: IO[bytes]) -> int:
        """The process group of a new job."""
        try:
            socket.send_fds(self._control, [request], [theirs.fileno(), output.fileno()])
            if answer := self._control.recv(64):
                return int(answer)
        except ConnectionError:
            pass
        raise self._died()

    def run(self, name: str, function: str, arguments: dict[str, Any], log: Path, timeout: float | None = None) -> Any:
        """Spawn a job and wait for what it returns."""
        return self.spawn(name, function, arguments, log).wait(timeout)

    def close(self) -> None:
        """End every job and the zygote itself."""
        self._closed = True
        for child in self._children:
            child.kill()
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    def _require_open(self) -> None:
        if self._closed:
            raise JobError("stopped before it began")

    def _await_ready(self) -> None:
        self._require_open()
        if not self._ready:
            if self._control.recv(64) != b"ready":
                raise self._died()
            self._ready = True

    def _died(self) -> JobError:
        message = self._process.stderr.read().decode(errors="replace") if self._process.stderr else ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        if code is not None and code < 0:
            return ended("the process that jobs are forked from", code, message, "run it again")
        last = message.strip().splitlines()[-1:] or ["no message"]
        return JobError(f"torch cannot be imported: {last[0]}", "run `exporter doctor`", message)


class _Lent(Zygote):
    """A zygote as one of those who share it sees it."""

    def __init__(self, owner: Zygote) -> None:
        self.environment = owner.environment
        self._owner, self._children, self._closed = owner, [], False

    @property
    def alive(self) -> bool:
        return not self._closed and self._owner.alive

    def spawn(self, name: str, function: str, arguments: dict[str, Any], log: Path) -> Child:
        self._require_open()
        child = self._owner.spawn(name, function, arguments, log)
        self._children.append(child)
        if self._closed:  # meanwhile
            child.kill()
        return child

    def close(self) -> None:
        self._closed = True
        for child in self._children:
            child.kill()


class Holder(Zygote):
    """A zygote that was forked from another and has loaded something: jobs forked from it share that memory.

    Closing it ends its jobs, and itself.
    """

    def __init__(self, child: Child, environment: dict[str, str]) -> None:
        """`child` runs a job that goes on with `forkserver.attend` of a socket that it receives on its channel."""
        self.environment = environment
        self._child = child
        self._lock = threading.Lock()
        self._ready = self._closed = False
        self._children = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(child.channel, [b"\n"], [theirs.fileno()])

    @property
    def alive(self) -> bool:
        return not self._closed and not self._child.finished

    def close(self) -> None:
        self._closed = True
        for child in self._children:
            child.kill()
        self._control.close()
        self._child.kill()

    def _died(self) -> JobError:
        try:
            self._child.wait(None)
        except JobError as error:
            return error
        return JobError(f"{self._child.name} ended early", "", self._child.tail())


class Zygotes:
    """Zygotes for runs that follow each other: one for each environment and set of modules, which import torch once.

    Call it as `Zygote` itself. One that died is replaced. Use as a context manager; leaving it ends every zygote.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[frozenset[tuple[str, str]], tuple[str, ...]], Zygote] = {}

    def __call__(self, environment: dict[str, str] | None = None, modules: tuple[str, ...] = ()) -> Zygote:
        """The zygote of that environment and those modules, lent."""
        key = frozenset((environment or {}).items()), modules
        if key in self._shared and not self._shared[key].alive:
            self._shared.pop(key).close()
        if key not in self._shared:
            self._shared[key] = Zygote(environment, modules)
        return self._shared[key].lend()

    def __enter__(self) -> Zygotes:
        return self

    def __exit__(self, *exception: object) -> None:
        for zygote in self._shared.values():
            zygote.close()
