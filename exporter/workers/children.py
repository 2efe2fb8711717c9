"""Run each job in its own process and return its result, or raise an error that says how the process ended.

Jobs are forked from the zygote. Each has its own process group, so that whatever it starts (compilers, workers) ends
with it.

This file is long because jobs, the zygote that forks them and how both end share the rules for processes and signals.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
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
# For processes that run side by side: waiting threads sleep instead of spinning on a core that another process needs,
# and NumPy and SciPy start no threads when they are imported, so that jobs can be forked from a process that has loaded
# a model. Timed processes run alone and without this.
SIDE_BY_SIDE = {"OMP_WAIT_POLICY": "PASSIVE"}
if platform.machine() == "x86_64":  # on other machines, torch itself may use OpenBLAS
    SIDE_BY_SIDE["OPENBLAS_NUM_THREADS"] = "1"
# For runs on the CPU. Where a library has looked for GPUs before a fork, torch.cuda.is_available() stays true in the
# job, but every use of CUDA fails, even torch.cond's.
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
# Modules that every run's jobs need.
JOBS = ("exporter.workers.tasks", "exporter.workers.model_holder", "exporter.workers.session.server")
# Modules that torch.export imports, slowly, for runs that need it. Only for runs on the CPU: the import may look for
# GPUs, which a zygote must not.
EXPORTING = ("torch._dynamo", "torch.export._trace", "sympy.tensor.tensor")
BACKGROUND = 10  # niceness of all jobs but the longest of their run


@dataclass
class Child:
    """A running job, with its socket, process group and log."""

    name: str
    channel: socket.socket
    group: int
    log: Path
    finished: bool = False

    def __post_init__(self) -> None:
        self.lines: TextIO = self.channel.makefile("r", encoding="utf-8", newline="\n")

    def wait(self, timeout: float | None) -> Any:
        """Return the job's result. Raises the job's own error, or JobError if it hung, crashed or was killed."""
        try:
            return self.conclude(self.readline(timeout), timeout)
        except TimeoutError:
            raise self._too_long(timeout) from None

    def expect(self, kind: str, timeout: float | None) -> Any:
        """Return a message that the job sends before it ends. Raises like `wait` if the job ends without sending it."""
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
        """Read the job's last messages, starting with `line`, and return or raise like `wait`."""
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
        """Parse a message. Raises JobError if user code wrote to the socket or the message cannot be unpickled."""
        try:
            kind, value = pickle.loads(bytes.fromhex(line))
        except Exception as error:  # a broken pickle may raise anything
            self.kill()
            cause = f"{self.name} sent an unreadable message ({type(error).__name__}: {str(error)[:200]})"
            remedy = "make sure that the recipe's code neither patches pickle nor uses descriptors that it did not open"
            raise JobError(cause, remedy, self.tail()) from error
        return kind, value

    def say(self, text: str) -> None:
        """Send the job a line. Does nothing if the job has ended; `wait` reports that."""
        with contextlib.suppress(OSError):
            self.channel.sendall(f"{text}\n".encode())

    def readline(self, timeout: float | None) -> str:
        """Return the next line that is not empty, or "" at the end. Raises TimeoutError after `timeout` seconds."""
        self.channel.settimeout(timeout)
        try:
            while (line := self.lines.readline()) == "\n":
                pass
            return line
        except (ConnectionError, ValueError):
            return ""

    def _outcome(self, outcome: tuple[str, Any] | None, code: int | None) -> Any:
        if outcome is None:
            error = ended(self.name, code, self.tail())
            if error.blame is None and filesystem.is_full(self.log.parent):
                error.blame = Blame("disk-full")
            raise error
        kind, value = outcome
        if kind == "error":
            raise value
        if kind == "crash":
            message, blame = value
            raise JobError(message, "", self.tail(), blame=blame)
        return value

    def _too_long(self, timeout: float | None) -> JobError:
        self.kill()
        return JobError(f"{self.name} took longer than {timeout:.0f} s and was stopped", "raise --timeout", self.tail())

    def tail(self) -> str:
        """Return the last lines of the log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return ""

    def kill(self) -> None:
        """Kill the job and every process that it started. Does nothing if the job has ended."""
        if self.finished:
            return
        started = processes.descendants(self.group)  # daemons among them have their own group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)
        processes.end(started)
        self.finished = True  # the pid may be reused
        self.close()

    def close(self) -> None:
        """Close our end of the socket."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)  # wakes blocked readers
        self.lines.close()
        self.channel.close()


def stand_back(niceness: int, pid: int = 0) -> None:
    """Raise the niceness of a process, by default this one. Never lowers it, which requires privileges."""
    if niceness > os.getpriority(os.PRIO_PROCESS, pid):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)


def ended(what: str, code: int | None, log: str, remedy: str = "") -> JobError:
    """Return the error for a process that ended without a result. A negative `code` is a signal; None means unknown."""
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
    """The process that jobs are forked from. A context manager: leaving it ends every job.

    `environment` is added to every job's environment. torch, the code of the jobs and `modules` are imported before
    jobs start. The groups `later` (see `exporter.workers.forkserver`) are prepared while it waits for further jobs.
    Thread-safe.
    """

    def __init__(
        self, environment: dict[str, str] | None = None, modules: tuple[str, ...] = (), later: tuple[str, ...] = ()
    ) -> None:
        filesystem.require_directory()
        self.environment = environment or {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "exporter.workers.forkserver", str(theirs.fileno())),
                    *(*JOBS, *modules, "--", *later),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # modules may print when they are imported
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
        """Return whether jobs can still be forked from it."""
        return not self._closed and self._process.poll() is None

    def lend(self) -> Zygote:
        """Return this zygote for one of several users. Closing the returned one ends only that user's jobs."""
        return _Lent(self)

    def spawn(self, name: str, function: str, arguments: dict[str, Any], log: Path) -> Child:
        """Start `module:function(channel, **arguments)` in a child and append its output to `log`.

        Raises JobError if the zygote is closed or has died.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as until_started, self._lock, log.open("ab") as output:
            self._await_ready()
            ours, theirs = socket.socketpair()
            until_started.callback(ours.close)
            with theirs, os.fdopen(os.memfd_create("request"), "wb") as request:
                pickle.dump((function, arguments), request)
                request.flush()
                group = self._fork(theirs, output, request)
            until_started.pop_all()
            child = Child(name, ours, group, log)
            self._children = [*(one for one in self._children if not one.finished), child]
        return child

    def _fork(self, theirs: socket.socket, output: IO[bytes], request: IO[bytes]) -> int:
        """Fork a job and return its process group."""
        try:
            socket.send_fds(self._control, [b"\n"], [file.fileno() for file in (theirs, output, request)])
            if answer := self._control.recv(64):
                return int(answer)
        except ConnectionError:
            pass
        raise self._died()

    def run(self, name: str, function: str, arguments: dict[str, Any], log: Path, timeout: float | None = None) -> Any:
        """Spawn a job, wait for it and return its result. Raises like `Child.wait`."""
        return self.spawn(name, function, arguments, log).wait(timeout)

    def close(self) -> None:
        """End every job and the zygote itself."""
        self._closed = True
        for child in self._children:
            child.kill()
        self._control.close()
        self._process.terminate()  # it may be importing; its supervisors end with it
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
    """One user's view of a shared zygote."""

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
        if self._closed:  # another thread closed it in the meantime
            child.kill()
        return child

    def close(self) -> None:
        self._closed = True
        for child in self._children:
            child.kill()


class Holder(Zygote):
    """A zygote that is itself a job and has loaded something. Jobs forked from it share that memory.

    Closing it ends its jobs and the process itself.
    """

    def __init__(self, child: Child, environment: dict[str, str]) -> None:
        """Use the job of `child`, which calls `forkserver.attend` with a socket that it receives on its channel."""
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
    """Zygotes shared by successive runs, one for each environment and set of modules, so that torch is imported once.

    Call it like `Zygote`. A zygote that has died is replaced. A context manager: leaving it ends every zygote.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[frozenset[tuple[str, str]], tuple[str, ...]], Zygote] = {}

    def __call__(
        self, environment: dict[str, str] | None = None, modules: tuple[str, ...] = (), later: tuple[str, ...] = ()
    ) -> Zygote:
        """Lend the zygote with this environment and these modules, and start it if necessary.

        `later` applies only if it is started.
        """
        key = frozenset((environment or {}).items()), modules
        if key in self._shared and not self._shared[key].alive:
            self._shared.pop(key).close()
        if key not in self._shared:
            self._shared[key] = Zygote(environment, modules, later)
        return self._shared[key].lend()

    def __enter__(self) -> Zygotes:
        return self

    def __exit__(self, *exception: object) -> None:
        for zygote in self._shared.values():
            zygote.close()
