"""Time exporter's kernels for packages beside oneDNN's: products of matrices and convolutions.

Both are compiled by inductor, in one process, and called in turn. `linear` has linear layers of BERT's sizes in float32
by the number of rows, `int8` the same with quantized weights and inputs, `convolutions` those of ResNet-18 with 3x3
pixels and a stride of 1, by the batch, and `int8-convolutions` these in int8.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._inductor import config

from exporter.core import environment
from exporter.evidence import stats
from exporter.targets import _gemm, _int8, _int8_convolutions, _winograd

ROWS = (2, 4, 14, 32, 128, 512, 4096)
IMAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and pixels in each direction
BATCHES = (1, 8, 32)
WAYS = ("oneDNN", "exporter")
NARROW = not environment.adds_bytes_exactly()  # how layers have to be quantized for this CPU


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


class Convolutions(nn.Module):
    """Four convolutions with as many channels, one after another."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image of the size of `x`."""
        for layer in self.layers:
            x = layer(x).relu()
        return x


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=[*WORK, "all"], nargs="?", default="linear")
    parser.add_argument("--threads", type=int, default=environment.usable_cpus())
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # torchao's deprecations
    settings: Any = config
    print(f"{environment.cpu_name()}, {arguments.threads} threads, torch {torch.__version__}")
    with torch.no_grad(), settings.patch({"freezing": True, "cpp.dynamic_threads": True, "force_disable_caches": True}):
        for name, work in WORK.items():
            for label, compiled, x in work() if arguments.work in (name, "all") else ():
                times = time_in_turn(compiled, x, arguments.calls)
                theirs, ours = (stats.median(times[way]) for way in WAYS)
                print(f"{label}: oneDNN {theirs:.2f} ms, exporter {ours:.2f} ms, {theirs / ours:.2f}x", flush=True)


def time_in_turn(compiled: dict[str, Any], x: torch.Tensor, calls: int) -> dict[str, list[float]]:
    """Return the times of each way in milliseconds. Before each timed call is one that is not."""
    times: dict[str, list[float]] = {way: [] for way in compiled}
    for _ in range(calls):
        for way, run in compiled.items():
            run(x)
            start = time.perf_counter()
            run(x)
            times[way].append((time.perf_counter() - start) * 1e3)
    return times


def linear() -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """Yield a label, what is compiled for all numbers of rows, and an input."""
    example = torch.randn(14, 768)
    compiled = {way: compile_for(way, lambda: Layers().eval(), example, dynamic=True) for way in WAYS}
    for rows in ROWS:
        yield f"{rows} rows", compiled, torch.randn(rows, 768)


def int8() -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """Yield a label, what is compiled for a number of rows, and an input."""
    for rows in ROWS:
        x = torch.randn(rows, 768)

        def quantized(x: torch.Tensor = x) -> nn.Module:
            graph: Any = torch.export.export(Layers().eval(), (x,)).module(check_guards=False)
            return _int8.pt2e(graph, [(x,)], NARROW)

        yield f"{rows} rows in int8", {way: compile_for(way, quantized, x) for way in WAYS}, x


def make_convolutions(channels: int) -> nn.Module:
    """Return the convolutions in evaluation mode."""
    return Convolutions(channels).eval()


def convolutions() -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """Yield a label, what is compiled for a batch of images, and an input."""
    for channels, pixels in IMAGES:
        for batch in BATCHES:
            x = torch.randn(batch, channels, pixels, pixels).to(memory_format=torch.channels_last)
            compiled = {way: compile_for(way, functools.partial(make_convolutions, channels), x) for way in WAYS}
            yield f"{batch} x {channels} channels of {pixels}x{pixels}", compiled, x


def int8_convolutions() -> Iterator[tuple[str, dict[str, Any], torch.Tensor]]:
    """Yield a label, what is compiled for a batch of images, and an input."""
    for channels, pixels in IMAGES:
        for batch in BATCHES:
            x = torch.randn(batch, channels, pixels, pixels)

            def quantized(x: torch.Tensor = x) -> nn.Module:
                model = make_convolutions(x.shape[1])
                graph: Any = torch.export.export(model, (x,)).module(check_guards=False)
                return _int8.pt2e(graph, [(x,)], NARROW)

            compiled = {way: compile_for(way, quantized, x) for way in WAYS}
            yield f"{batch} x {channels} channels of {pixels}x{pixels} in int8", compiled, x


def compile_for(way: str, make: Callable[[], nn.Module], example: torch.Tensor, dynamic: bool = False) -> Any:
    """Return the compiled module, with its code generated."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = torch.compile(make())
    if dynamic:
        torch._dynamo.mark_dynamic(example, 0)
    with contextlib.ExitStack() as changed:
        if way == "exporter":
            changed.enter_context(_gemm.compiled(math.inf if NARROW else 0))
            changed.enter_context(_winograd.compiled())
            changed.enter_context(_int8_convolutions.compiled())
        run(example)
    return run


WORK = {
    "linear": linear,
    "int8": int8,
    "convolutions": convolutions,
    "int8-convolutions": int8_convolutions,
}


if __name__ == "__main__":
    main()
