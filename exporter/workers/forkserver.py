"""The server that children are forked from: it has imported torch once, so that a job need not.

Run as `python -m exporter.workers.forkserver FD MODULE...`, with a Unix socket at FD, and what to import beside torch.
Each request is a pickled (function, arguments) from our own parent process, with the descriptors of a socket and of a
log. A supervisor is forked for each; it leads a process group of its own, forks the job, waits, and sends how the job
ended as the last message on the socket.

It never starts a thread and never touches CUDA: both would break in its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
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

BACKLOG = 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LONGEST = 100_000  # characters of an error's message
_dumps, _loads = pickle.dumps, pickle.loads  # as they were before any recipe could change them
_job = 0  # the process that answers for a job; 0 in those that run none


def serve(control: socket.socket, modules: Sequence[str]) -> None:
    """Fork a supervisor for each request until the parent closes its end; then end all that still runs.

    torch is imported here, once for all children, and so are the modules; where that fails, jobs try it themselves.
    """
    gc.disable()  # imports leave no garbage, and take a fifth longer with collections
    importlib.import_module("torch")
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may ignore it: who ended would be gone unasked
    attend(control)


def attend(control: socket.socket) -> None:
    """Say that this process is ready, and fork for each request: for whoever has one thread, and something to share."""
    gc.freeze()
    supervisors: list[int] = []
    control.sendall(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, BACKLOG, 2)
        if not request:
            break
        supervisors = [pid for pid in supervisors if os.waitpid(pid, os.WNOHANG)[0] == 0]
        pid = os.fork()
        if pid == 0:
            control.close()
            _supervise(request, *descriptors)
        supervisors.append(pid)
        with contextlib.suppress(OSError):  # the group is there before its number is told
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(str(pid).encode())
    for pid in supervisors:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _supervise(request: bytes, channel_fd: int, log_fd: int) -> None:
    os.setpgid(0, 0)
    os.dup2(log_fd, 2)  # else a job that lives on would keep the parent from reading how the zygote died
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    with contextlib.suppress(AttributeError):  # Linux: where somebody kills the zygote, its jobs end too
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # a daemon with a session of its own stays among ours
    pid = os.fork()
    if pid == 0:
        _run_job(request, channel_fd, log_fd)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError), socket.socket(fileno=channel_fd) as channel:
        _send(channel, "exit", code)
    _end_all()  # what the job started ends with it


def _end_all() -> None:
    """End whom this process has started or adopted, and its group with itself."""
    while found := [pid for pid in processes.descendants(os.getpid()) if _alive(pid)]:
        processes.end(found)
        time.sleep(0.01)
    os.killpg(0, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Whether it still runs; one of ours that has ended is waited for."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    with contextlib.suppress(OSError):
        return processes.PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _run_job(request: bytes, channel_fd: int, log_fd: int) -> None:
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
        function, arguments = _loads(request)
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
    """Where memory runs out, let the kernel end this job, and not our parent or who else is there."""
    place = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        place.write_text(str(min(int(place.read_text()) + 500, 1000)))


def _answer(channel: socket.socket, function: Any, arguments: dict[str, Any]) -> None:
    """Send what the job returns, or what it raised and where in the model, as one line."""
    try:
        answer: tuple[str, Any] = ("result", function(channel=channel, **arguments))
    except ExporterError as error:
        traceback.print_exc()
        error.args = (source_lines.located(str(error)[:LONGEST], error),)
        answer = ("error", error)
    except SystemExit as error:
        traceback.print_exc()
        said = f"the model's code ended the process: sys.exit({error.code!r})"
        answer = ("crash", (source_lines.located(said, error), None))
    except Exception as error:
        traceback.print_exc()
        answer = ("crash", (source_lines.own(error) or source_lines.summary(error), source_lines.blame(error)))
    tell(channel, *answer)


def tell(channel: socket.socket, kind: str, value: Any) -> None:
    """Send a job's message to the parent. A copy of the job, which a recipe's own fork left, ends here."""
    leave_if_copied()
    _send(channel, kind, value)


def leave_if_copied() -> None:
    """End this process where it is a copy of the job that user code forked, and that came back from it."""
    if _job and os.getpid() != _job:
        os._exit(0)


def _send(channel: socket.socket, kind: str, value: Any) -> None:
    """As one line; the empty line before it ends one that was cut short."""
    channel.sendall(b"\n" + _dumps((kind, value)).hex().encode() + b"\n")


def hear(channel: socket.socket) -> str:
    """The next line from the parent; EOFError where it has gone."""
    with channel.makefile("r", encoding="utf-8") as lines:
        if line := lines.readline():
            return line
    raise EOFError("the parent has gone")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
