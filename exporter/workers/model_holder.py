"""A process that has loaded the model once, and forks the jobs that need it: they share its weights, page by page.

A job that writes to a weight has a copy of the pages that it wrote to, and nobody else sees it.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import torch

from exporter.workers import forkserver, loading
from exporter.workers.messages import Job


def hold(channel: socket.socket, job: Job) -> None:
    """Load the model, say whether jobs can be forked from here, and fork them until the parent closes its end.

    They cannot where loading has left threads behind, which a fork would lose, or has touched a GPU: then every job
    loads the model itself. Meanwhile torch has one thread, for it keeps those that it has started.
    """
    loading.hold(replace(job, options=replace(job.options, threads=1)))
    forks = len(list(Path("/proc/self/task").iterdir())) == 1 and not torch.cuda.is_initialized()
    forkserver.tell(channel, "loaded", forks)
    if not forks:
        return
    _, (descriptor,), _, _ = socket.recv_fds(channel, 1, 1)
    with socket.socket(fileno=descriptor) as control:
        forkserver.attend(control)
