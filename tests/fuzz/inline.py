"""A stand-in for the zygote: jobs run in threads of this process, one at a time.

What a run does is the same, line by line; only the processes are left out, which would cost a fork and its imports for
each of the nine jobs of a case.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from exporter import zygote
from exporter.isolate import Child


class Job(Child):
    """A job in a thread: nothing to kill."""

    def kill(self) -> None:
        """Close our end; the thread ends when it has written or read what it waits for."""
        if not self.finished:
            self.finished = True
            self.close()


class Inline:
    """As `exporter.isolate.Zygote`, to those who use it."""

    environment: dict[str, str] = {}

    def __init__(self, *_: object) -> None:
        self._turn = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._jobs: list[Job] = []
        self._kept = (list(sys.path), set(sys.modules), tempfile.tempdir, dict(os.environ))

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def spawn(self, name: str, function: str, arguments: dict[str, Any], log: Path) -> Child:
        """Start `module:function(channel, **arguments)`."""
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._run, args=(theirs, log, function, arguments), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        self._jobs.append(Job(name, ours, 0, log))
        return self._jobs[-1]

    def run(self, name: str, function: str, arguments: dict[str, Any], log: Path, timeout: float | None = None) -> Any:
        """Spawn a job and wait for what it returns."""
        return self.spawn(name, function, arguments, log).wait(timeout)

    def close(self) -> None:
        """End all jobs, and put back what they changed for this process."""
        for job in self._jobs:
            job.kill()
        for thread in self._threads:
            thread.join()
        path, modules, tempfile.tempdir, variables = self._kept
        added = set(sys.path) - set(path)
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            if Path(getattr(sys.modules[name], "__file__", None) or "").parent.as_posix() in added:
                del sys.modules[name]  # a recipe's
        os.environ.clear()
        os.environ.update(variables)

    def _run(self, channel: socket.socket, log: Path, function: str, arguments: dict[str, Any]) -> None:
        module, _, name = function.partition(":")
        with (
            self._turn,
            channel,
            log.open("a") as output,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # as in a child, where none is an error
            zygote._answer(channel, getattr(import_module(module), name), arguments)
