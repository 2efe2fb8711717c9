"""A stand-in for the zygote: jobs run in one thread of this process, one after another.

A run does the same as usual, but without processes, which would cost a fork and its imports for each of the nine jobs
of a case.

The thread never ends: with torch 2.11, reading a program in one thread and, after that thread has ended, another
program in a new one crashes in FakeTensorMode or later in the garbage collector.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from exporter.workers import forkserver
from exporter.workers.children import Child

_runner = ThreadPoolExecutor(1, "job")


class Job(Child):
    """A job in this process: nothing to kill."""

    def kill(self) -> None:
        """Close our end of the channel; the job ends at its next read or write."""
        if not self.finished:
            self.finished = True
            self.close()


class Inline:
    """Has the interface of `exporter.workers.children.Zygote`."""

    environment: dict[str, str] = {}

    def __init__(self, *_: object) -> None:
        self._runs: list[Future[None]] = []
        self._jobs: list[Job] = []
        self._kept = (list(sys.path), set(sys.modules), tempfile.tempdir, dict(os.environ))

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def spawn(self, name: str, function: str, arguments: dict[str, Any], log: Path) -> Child:
        """Start `module:function(channel, **arguments)`."""
        ours, theirs = socket.socketpair()
        self._runs.append(_runner.submit(self._run, theirs, log, function, arguments))
        self._jobs.append(Job(name, ours, 0, log))
        return self._jobs[-1]

    def run(self, name: str, function: str, arguments: dict[str, Any], log: Path, timeout: float | None = None) -> Any:
        """Spawn a job and return its result."""
        return self.spawn(name, function, arguments, log).wait(timeout)

    def close(self) -> None:
        """End all jobs, and restore what they changed in this process."""
        for job in self._jobs:
            job.kill()
        for run in self._runs:
            with contextlib.suppress(OSError):  # nobody listens any more
                run.result()
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
            channel,
            log.open("a") as output,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # as in a child, where no warning is an error
            forkserver._answer(channel, getattr(import_module(module), name), arguments)
