"""Time linear layers of BERT's sizes with exporter's micro-kernel beside oneDNN, by the number of rows.

Both are compiled by inductor with dynamic rows, in one process, and called in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

import torch
from torch import nn
from torch._inductor import config

from exporter.core import environment
from exporter.evidence import stats
from exporter.targets import _gemm

ROWS = (2, 4, 14, 32, 128, 512, 4096)
WAYS = ("oneDNN", "exporter")


class Layers(nn.Module):
    """The linear layers of four of BERT's blocks, one after another."""

    def __init__(self) -> None:
        super().__init__()
        block = [(768, 768)] * 4 + [(768, 3072), (3072, 768)]
        self.layers = nn.ModuleList(nn.Linear(*sizes) for _ in range(4) for sizes in block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return rows of 768, as `x` has."""
        for layer in self.layers:
            x = layer(x).relu()
        return x


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=environment.usable_cpus())
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings: Any = config
    print(f"{environment.cpu_name()}, {arguments.threads} threads, torch {torch.__version__}")
    with torch.no_grad(), settings.patch({"freezing": True, "cpp.dynamic_threads": True, "force_disable_caches": True}):
        compiled = {way: compile_layers(way) for way in WAYS}
        for rows in ROWS:
            x = torch.randn(rows, 768)
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(arguments.calls):
                for way, run in compiled.items():
                    run(x)
                    start = time.perf_counter()
                    run(x)
                    times[way].append((time.perf_counter() - start) * 1e3)
            theirs, ours = (stats.median(times[way]) for way in WAYS)
            print(f"{rows} rows: oneDNN {theirs:.2f} ms, exporter {ours:.2f} ms, {theirs / ours:.2f}x", flush=True)


def compile_layers(way: str) -> Any:
    """Return the compiled layers, with their code generated."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = torch.compile(Layers().eval())
    example = torch.randn(14, 768)
    torch._dynamo.mark_dynamic(example, 0)
    with _gemm.compiled() if way == "exporter" else contextlib.nullcontext():
        run(example)
    return run


if __name__ == "__main__":
    main()
