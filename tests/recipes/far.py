"""Models that know of the Ray worker that they are made by; a test copies this file to a folder of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import recipes_shared
import torch

HERE = Path(__file__).parent


class held:
    """Tells which node it is on, by the process of its raylet, and waits for a file to come."""

    inputs = staticmethod(recipes_shared.inputs)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        if not (HERE / "go").exists():
            with (HERE / "begun").open("a") as log:
                log.write(f"{os.environ.get('RAY_RAYLET_PID')}\n")
        while not (HERE / "go").exists():
            time.sleep(0.05)
        return recipes_shared.Mlp()


class deadly:
    """Kills the worker."""

    inputs = staticmethod(recipes_shared.inputs)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        pid = os.getpid()
        while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        return recipes_shared.Mlp()
