"""Recipes for tests of memory and loading."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import torch
from recipes_shared import Mlp, inputs


class counted:
    """Writes a line each time it is loaded."""

    sizes = {"batch": (1, 8)}
    inputs = staticmethod(inputs)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        with Path(os.environ["LOADED"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
        return Mlp()


class threaded(counted):
    """Starts a thread, which a fork would lose."""

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return counted.load(weights)


class scientific(counted):
    """Imports SciPy, whose linear algebra starts threads unless it is told not to."""

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        import scipy.linalg  # noqa: F401

        return counted.load(weights)


class showing(counted):
    """Shows a progress bar while it loads, as transformers does; a thread watches it unless tqdm is told not to."""

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        from tqdm import tqdm

        for _ in tqdm(range(2)):
            pass
        return counted.load(weights)


class Greedy(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            x = x + torch.zeros(10**9, dtype=torch.float64).sum()
        return super().forward(x)


class Killed(Mlp):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class greedy:
    """Takes 8 GB while it is traced."""

    sizes = {"batch": (1, 8)}
    inputs = staticmethod(inputs)
    load = staticmethod(lambda weights: Greedy())


class killed:
    """Kills its process while it is traced."""

    sizes = {"batch": (1, 8)}
    inputs = staticmethod(inputs)
    load = staticmethod(lambda weights: Killed())


class unloadable:
    """Runs out of memory for its weights."""

    sizes = {"batch": (1, 8)}
    inputs = staticmethod(inputs)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        os.kill(os.getpid(), signal.SIGKILL)
        return Mlp()
