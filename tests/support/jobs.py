"""Jobs for children of the zygote; each does what its name says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from exporter import targets
from exporter.core.errors import ExportError
from exporter.workers.session import server


def return_value(channel: socket.socket, value: Any) -> Any:
    print("about to return", value)
    return value


def return_many_bytes(channel: socket.socket, count: int) -> bytes:
    return b"x" * count


def zygote_pid(channel: socket.socket) -> int:
    supervisor = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(supervisor.rpartition(")")[2].split()[1])


def modules(channel: socket.socket) -> list[str]:
    return sorted(sys.modules)


def ignore_the_channel_and_sleep(channel: socket.socket) -> None:
    time.sleep(600)


def raise_error(channel: socket.socket) -> NoReturn:
    raise ValueError("two\nlines")


def raise_exporter_error(channel: socket.socket) -> NoReturn:
    raise ExportError("the model cannot", "try another")


def raise_unpicklable(channel: socket.socket) -> NoReturn:
    class Local(Exception):
        pass

    raise Local("of a class that nobody else knows")


def segfault(channel: socket.socket) -> None:
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def oom_score(channel: socket.socket) -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def be_killed(channel: socket.socket) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_silently(channel: socket.socket) -> None:
    os._exit(3)


def exit_with_message(channel: socket.socket) -> None:
    sys.exit("a model should not do this")


def warn(channel: socket.socket) -> None:
    warnings.warn("mind the gap", stacklevel=1)


def read_stdin(channel: socket.socket) -> str:
    return sys.stdin.read()


def start_children_and_hang(channel: socket.socket, note: Path) -> None:
    started = [subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sh", "-c", "sleep 600 & wait"])]
    note.write_text(" ".join(str(one.pid) for one in started))
    time.sleep(600)


def send_pid_and_hang(channel: socket.socket) -> None:
    from exporter.workers.forkserver import tell

    tell(channel, "pid", os.getpid())
    time.sleep(600)


def start_a_child_and_return(channel: socket.socket) -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def send_messages_first(channel: socket.socket, lines: list[str]) -> str:
    import pickle

    for line in lines:
        channel.sendall(pickle.dumps(("news", line)).hex().encode() + b"\n")
    return "done"


def serve(channel: socket.socket, behaviour: str, golden: str) -> None:
    """Serve a session of a function, without an artifact file."""

    def run(inputs: Any) -> Any:
        if behaviour == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "hangs":
            time.sleep(600)
        if behaviour == "raises":
            raise RuntimeError("not with these inputs")
        return tuple(2 * t for t in inputs)

    def load() -> targets.Loaded:
        if behaviour == "hangs at load":
            time.sleep(600)
        if behaviour == "dies at load":
            os.abort()
        return targets.Loaded(run, lambda: "Imaginary")

    server.serve(channel, load, golden, ("y",), targets.Options())


def daemon(channel: socket.socket, file: str, stays: bool) -> None:
    """Start an orphaned process in a new session, and write its ID to the file."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(file).write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not Path(file).is_file() or not Path(file).read_text():
        time.sleep(0.01)
    time.sleep(600 if stays else 0)


def fork_and_return_twice(channel: socket.socket) -> str:
    return "the child" if os.fork() == 0 else (time.sleep(1), "the job")[1]


def patch_pickle(channel: socket.socket) -> str:
    import pickle

    pickle.dumps = lambda *_, **__: b"nonsense"  # type: ignore[assignment]
    return "sent anyway"


def write_to_the_channel(channel: socket.socket) -> None:
    channel.sendall(b"\nnonsense\n")


def call_sys_exit(channel: socket.socket) -> NoReturn:
    sys.exit(3)


def raise_long_error(channel: socket.socket) -> NoReturn:
    raise ValueError("much " * 10_000_000)


def raise_long_exporter_error(channel: socket.socket) -> NoReturn:
    raise ExportError("much " * 10_000_000)
