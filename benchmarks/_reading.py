"""Print, as JSON, how many weights a call of a model multiplies with, and how many bytes are read in a second here."""

from __future__ import annotations

import json
import sys
import time

import torch

from exporter.core import environment
from exporter.model import recipes

BYTES = 1 << 30  # far more than any cache holds
TRIALS = 15


def main() -> None:
    """Measure for the model and the device in the arguments."""
    model, device = sys.argv[1:]
    torch.set_num_threads(environment.usable_cpus())
    print(
        json.dumps(
            {"weights": multiplied(recipes.load(recipes.find(model)).load("random")), "bytes_per_s": rate(device)}
        )
    )


def multiplied(model: torch.nn.Module) -> int:
    """Return the number of weights in matrices and kernels, without embedding tables, of which few rows are read."""
    tables = {id(inner.weight) for inner in model.modules() if isinstance(inner, torch.nn.Embedding)}
    return sum(one.numel() for one in model.parameters() if one.dim() > 1 and id(one) not in tables)


def rate(device: str) -> float:
    """Return the bytes per second of the fastest of several sums over a buffer, with the threads that a call has."""
    buffer = torch.ones(BYTES // 8, dtype=torch.float64, device=device)
    best = 0.0
    for _ in range(TRIALS):
        begun = time.perf_counter()
        buffer.sum().item()  # waits for the device
        best = max(best, BYTES / (time.perf_counter() - begun))
    return best


if __name__ == "__main__":
    main()
