"""The fork server (zygote): it imports torch once and forks a child for each job, so jobs start without the import.

Run as `python -m exporter.workers.forkserver FD MODULE... -- GROUP...`; FD is a Unix socket, and the modules are
imported after torch. Once it has served a request, the server uses the time until the next one for the groups. A group
is `module` or `module:function`, to import or to call, or several with commas between them, of which each needs the one
before. A request from our own parent process consists of three descriptors: those of a socket, of a log, and of a file
with the pickled (function, arguments), which may be longer than a message on a socket. The server forks a supervisor
for each request. The supervisor leads its own process group, forks the job, waits for it, and sends its exit code as
the last message on the socket.

The server never starts a thread and never touches CUDA: both would break in its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exporter.core import processes, source_lines
from exporter.core.errors import ExporterError

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IDLE_S = 0.1  # without a request, before the server prepares more: the first requests of a run come one after another
TRIAL_S = 10.0  # for a part that a child tries
LONGEST = 100_000  # limit of an error message, in characters
_dumps, _loads = pickle.dumps, pickle.loads  # saved before a recipe can patch them
_job = 0  # pid of the process that runs the job; 0 in processes without one


def serve(control: socket.socket, modules: Sequence[str], later: Sequence[str] = ()) -> None:
    """Fork a supervisor for each request until the parent closes its end; then kill the jobs that still run.

    torch and the modules are imported once for all children; so is what comes `later`, for those that start after it.
    What fails is left to the jobs.
    """
    gc.disable()  # imports leave no garbage, and collections make them a fifth slower
    importlib.import_module("torch")
    for module in modules:
        _prepare(module)
    gc.enable()
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the parent too, which ends this process
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if inherited as ignored, waitpid would lose exit codes
    attend(control, later)


def _prepare(what: str) -> bool:
    """Import `module`, or call `module:function`, for all children; return whether that worked."""
    module, _, function = what.partition(":")
    try:
        found = importlib.import_module(module)
        if function:
            getattr(found, function)()
    except BaseException:  # even SystemExit: it is left to the children
        return False
    return True


def _prepare_later(group: str, control: socket.socket) -> None:
    """Prepare a group's parts in order, for all children, up to the first that fails."""
    gc.disable()
    for what in group.split(","):
        if not (_is_safe(what, control) and _prepare(what)):
            break
    gc.freeze()
    gc.enable()


def _is_safe(what: str, control: socket.socket) -> bool:
    """Return whether this process survives a part, and has one thread afterwards.

    A child tries it, unless it is torch's or ours: if this process crashed, no further job could start.
    """
    if what.partition(".")[0] in ("torch", "exporter"):
        return True
    pid = os.fork()
    if pid == 0:
        safe = False
        with contextlib.suppress(BaseException):
            _end_with_parent(signal.SIGKILL)
            control.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            safe = _prepare(what) and len(list(Path("/proc/self/task").iterdir())) == 1
        os._exit(not safe)
    for _ in range(int(TRIAL_S / 0.01)):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _end_with_parent(number: int) -> None:
    """Let the kernel send this process a signal when its parent ends; on Linux only."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def attend(control: socket.socket, later: Sequence[str] = ()) -> None:
    """Send "ready", then fork a supervisor for each request. Children share this process's memory.

    While there is no request, prepare a group of what comes `later`. The process must have a single thread.
    """
    gc.freeze()
    supervisors: list[int] = []
    waiting = list(later)
    control.sendall(b"ready")
    while True:
        while waiting and supervisors and not select.select([control], [], [], IDLE_S)[0]:
            _prepare_later(waiting.pop(0), control)
        request, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not request:
            break
        supervisors = [pid for pid in supervisors if os.waitpid(pid, os.WNOHANG)[0] == 0]
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            control.close()
            _supervise(server, *descriptors)
        supervisors.append(pid)
        with contextlib.suppress(OSError):  # the group must exist before the parent gets its id
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(str(pid).encode())
    for pid in supervisors:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _supervise(server: int, channel_fd: int, log_fd: int, request_fd: int) -> None:
    os.setpgid(0, 0)
    os.dup2(log_fd, 2)  # a job that outlives the server must not hold the stderr that the parent reads to its end
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    _end_with_parent(signal.SIGTERM)
    if os.getppid() != server:  # it ended before
        os._exit(0)
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopts daemons that start their own session
    pid = os.fork()
    if pid == 0:
        _run_job(channel_fd, log_fd, request_fd)
    os.close(request_fd)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError), socket.socket(fileno=channel_fd) as channel:
        _send(channel, "exit", code)
    _end_all()  # processes that the job started end with it


def _end_all() -> None:
    """Kill every process that this one started or adopted, then its own process group, itself included."""
    while found := [pid for pid in processes.descendants(os.getpid()) if _alive(pid)]:
        processes.end(found)
        time.sleep(0.01)
    os.killpg(0, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Return whether the process still runs, and reap it if it is a child that has ended."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    with contextlib.suppress(OSError):
        return processes.PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _run_job(channel_fd: int, log_fd: int, request_fd: int) -> None:
    global _job
    code, _job = 70, os.getpid()
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        _be_killed_first()
        warnings.simplefilter("default")
        with os.fdopen(request_fd, "rb") as request:
            request.seek(0)
            function, arguments = _loads(request.read())
        module, _, name = function.partition(":")
        with socket.socket(fileno=channel_fd) as channel:
            _answer(channel, getattr(importlib.import_module(module), name), arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave_if_copied()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _be_killed_first() -> None:
    """Raise this job's OOM score, so that the kernel kills it before our parent or other processes."""
    place = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        place.write_text(str(min(int(place.read_text()) + 500, 1000)))


def _answer(channel: socket.socket, function: Any, arguments: dict[str, Any]) -> None:
    """Send the job's result as one line, or its error with the place in the model's code."""
    try:
        answer: tuple[str, Any] = ("result", function(channel=channel, **arguments))
    except ExporterError as error:
        _log_traceback()
        error.args = (source_lines.located(str(error)[:LONGEST], error),)
        answer = ("error", error)
    except SystemExit as error:
        _log_traceback()
        message = f"the model's code ended the process: sys.exit({error.code!r})"
        answer = ("crash", (source_lines.located(message, error), None))
    except Exception as error:
        _log_traceback()
        answer = ("crash", (source_lines.own(error) or source_lines.summary(error), source_lines.blame(error)))
    tell(channel, *answer)


def _log_traceback() -> None:
    """Write the current exception to the job's log; if its disk is full, the parent is still to learn the error."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


def tell(channel: socket.socket, kind: str, value: Any) -> None:
    """Send a job's message to the parent. A copy of the job that a recipe forked exits here instead."""
    leave_if_copied()
    _send(channel, kind, value)


def leave_if_copied() -> None:
    """Exit if this process is a copy of the job: user code forked it, and the copy returned from user code."""
    if _job and os.getpid() != _job:
        os._exit(0)


def _send(channel: socket.socket, kind: str, value: Any) -> None:
    """Send a message as one line. The newline before it ends a line that was cut short."""
    channel.sendall(b"\n" + _dumps((kind, value)).hex().encode() + b"\n")


def hear(channel: socket.socket) -> str:
    """Return the next line from the parent. Raises EOFError if the parent has closed the channel."""
    with channel.makefile("r", encoding="utf-8") as lines:
        if line := lines.readline():
            return line
    raise EOFError("the parent closed the channel")


if __name__ == "__main__":
    _dashes = sys.argv.index("--")
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:_dashes], sys.argv[_dashes + 1 :])
