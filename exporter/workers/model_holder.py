"""A process that loads the model once and forks the jobs that need it, so that they share the memory of its weights.

A job that writes to a weight gets its own copy of the pages that it writes to; other jobs do not see the change.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
from dataclasses import replace
from pathlib import Path

import torch

from exporter.workers import forkserver, loading
from exporter.workers.messages import Job


def hold(channel: socket.socket, job: Job) -> None:
    """Load the model, report whether jobs can be forked from here, and fork them until the parent closes its end.

    They cannot if loading left threads behind, which a fork would lose, or touched a GPU; every job then loads the
    model itself. torch loads with one thread because it never stops the threads that it starts, and progress bars of
    tqdm, which transformers shows while it reads weights, start none.
    """
    with contextlib.suppress(ImportError, AttributeError):  # not a dependency, and a recipe may have another tqdm
        importlib.import_module("tqdm").tqdm.monitor_interval = 0
    loading.hold(replace(job, options=replace(job.options, threads=1)))
    forks = len(list(Path("/proc/self/task").iterdir())) == 1 and not torch.cuda.is_initialized()
    forkserver.tell(channel, "loaded", forks)
    if not forks:
        return
    _, (descriptor,), _, _ = socket.recv_fds(channel, 1, 1)
    with socket.socket(fileno=descriptor) as control:
        forkserver.attend(control)
