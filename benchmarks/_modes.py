"""Measure the speed-up of torch.compile's modes, and the first call with an empty cache, one process per mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _rows import Bench, Rows

MODES = ("default", "reduce-overhead", "max-autotune")
SCALAR, RESNET, BERT, DISTANCES = "scalar", "resnet18", "bert", "distances"
LABELS = {
    SCALAR: "sin(x) + cos(x) of one number",
    RESNET: "ResNet18, batch 16",
    BERT: "BERT-base, batch 1, sequence 14",
    DISTANCES: "distances of 5,000 points to 100 centres, in NumPy",
}
QUICK = (SCALAR, DISTANCES)


def measure(bench: Bench) -> list[dict[str, Any]]:
    """Return a rotation for each workload and mode, the slowest to build last; NumPy has only the default mode."""
    return [
        _rotation(bench, workload, mode)
        for mode in MODES
        for workload in (QUICK if bench.quick else LABELS)
        if workload != DISTANCES or mode == MODES[0]
    ]


def _rotation(bench: Bench, workload: str, mode: str) -> dict[str, Any]:
    label = LABELS[workload]
    baseline = f"{'NumPy' if workload == DISTANCES else 'eager'}, beside {mode}"
    names, arguments = (baseline, mode), {"workload": workload, "mode": mode, "baseline": baseline}
    return bench.rotation(label, baseline, lambda: bench.measure("_modes:compiled", names, label, **arguments))


def compiled(
    channel: Any,
    workload: str,
    mode: str,
    baseline: str,
    device: str,
    threads: int,
    budget: float,
    folder: str,
) -> Rows:
    """Return the rows of one workload, not compiled and compiled in one mode.

    Raises AssertionError if the outputs differ.
    """
    import torch
    from _timed import first_call, rotate, settings

    with settings(device, threads, folder), torch.no_grad():
        torch.manual_seed(0)
        function, arguments = WORKLOADS[workload](device)
        on_gpu = workload == DISTANCES and device != "cpu"
        fast = (_numpy_on_gpu if on_gpu else torch.compile)(function, mode=mode)
        got, seconds = first_call(lambda: fast(*arguments), device)
        torch.testing.assert_close(got, function(*arguments), rtol=1e-3, atol=1e-3)
        calls = {name: functools.partial(each, *arguments) for name, each in ((baseline, function), (mode, fast))}
        rows = rotate(calls, budget, baseline, device)
    rows[mode]["facts"] = {"first_s": seconds}
    return rows


def _numpy_on_gpu(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """Compile a NumPy function for the GPU; arguments and result are copied there and back."""
    import torch

    fast = torch.compile(torch.compiler.wrap_numpy(function), mode=mode)
    return lambda *arrays: fast(*(torch.from_numpy(array).cuda() for array in arrays)).cpu().numpy()


Workload = tuple[Callable[..., Any], tuple[Any, ...]]  # a function and its arguments


def _scalar(device: str) -> Workload:
    import torch

    return lambda x: torch.sin(x) + torch.cos(x), (torch.randn(1, device=device),)


def _resnet18(device: str) -> Workload:
    from exporter_models import resnet18 as recipe

    return recipe.load("random").eval().to(device), (recipe.inputs(16)["x"].to(device),)


def _bert(device: str) -> Workload:
    from exporter_models import bert as recipe

    return recipe.load("random").eval().to(device), tuple(tensor.to(device) for tensor in recipe.inputs().values())


def _distances(device: str) -> Workload:
    import numpy as np

    generator = np.random.default_rng(0)
    points, centres = (generator.standard_normal((count, 16), np.float32) for count in (5000, 100))
    return lambda a, b: np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2)), (points, centres)


WORKLOADS = {SCALAR: _scalar, RESNET: _resnet18, BERT: _bert, DISTANCES: _distances}
