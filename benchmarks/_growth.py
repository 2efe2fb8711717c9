"""Measure latency and build time of a BERT-like encoder against batch, sequence and layers, one process per point."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _rows import Bench, Rows

EAGER = "eager"
ROUTES = ("trace, frozen", "AOTInductor, frozen", "onnxruntime")
BASE = {"batch": 1, "sequence": 16, "layers": 1}
FULL = {"batch": (1, 4, 16), "sequence": (16, 64, 256), "layers": (1, 2, 4, 8)}
QUICK = {"batch": (1, 8), "sequence": (16, 64), "layers": (1, 2)}
WIDTH, QUICK_WIDTH = 768, 128


def measure(bench: Bench) -> list[dict[str, Any]]:
    """Return a rotation for each point; a point differs from BASE in at most one size."""
    width, sweeps = (QUICK_WIDTH, QUICK) if bench.quick else (WIDTH, FULL)
    points = {tuple((BASE | {name: value}).items()) for name, values in sweeps.items() for value in values}
    return [_rotation(bench, dict(point), width) for point in sorted(points)]


def _rotation(bench: Bench, point: dict[str, int], width: int) -> dict[str, Any]:
    label = ", ".join(f"{name} {size}" for name, size in point.items())
    names = EAGER, *ROUTES
    rows = functools.partial(bench.measure, "_growth:rows", names, label, width=width, **point)
    return bench.rotation(f"encoder of width {width}", EAGER, rows, point=point)


def rows(
    channel: Any,
    batch: int,
    sequence: int,
    layers: int,
    width: int,
    device: str,
    threads: int,
    budget: float,
    folder: str,
) -> Rows:
    """Return the rows of eager and of each route; a route that fails or differs from eager has an error instead."""
    import onnxscript  # noqa: F401  imported before timing starts, like the compiler
    import torch
    import torch._inductor.compile_fx
    from _plain import Flat
    from _timed import rotate, settings
    from transformers import BertConfig, BertModel

    from exporter.core import source_lines

    with settings(device, threads, folder) as scratch, torch.no_grad():
        torch.manual_seed(0)
        config = BertConfig(
            num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width, num_attention_heads=width // 64
        )
        model = Flat(BertModel(config)).eval().requires_grad_(False).to(device)
        ids = torch.randint(1000, 30000, (batch, sequence), device=device)
        inputs = ids, torch.ones_like(ids), torch.zeros_like(ids)
        calls: dict[str, Callable[[], Any]] = {EAGER: functools.partial(model, *inputs)}
        found: Rows = {}
        for name, build in zip(ROUTES, (_trace, _package, _onnx), strict=True):
            try:
                started = time.perf_counter()
                run = build(model, inputs, scratch, device, threads)
                found[name] = {"facts": {"build_s": time.perf_counter() - started}}
                torch.testing.assert_close(tuple(run()), model(*inputs), rtol=1e-3, atol=1e-3)
                calls[name] = run
            except Exception as error:  # a route may fail in any way
                found[name] = {"error": source_lines.summary(error)}
        timed = rotate(calls, budget, EAGER, device)
    return {name: timed.get(name, {}) | found.get(name, {}) for name in (EAGER, *ROUTES)}


def _trace(model: Any, inputs: Any, folder: Path, device: str, threads: int) -> Callable[[], Any]:
    import _plain
    import torch

    _plain.trace(model, inputs, folder / "trace.pt")
    return functools.partial(torch.jit.load(str(folder / "trace.pt"), map_location=device), *inputs)


def _package(model: Any, inputs: Any, folder: Path, device: str, threads: int) -> Callable[[], Any]:
    import _plain
    import torch

    _plain.package(_plain.program(model, inputs), folder / "compile.pt2")
    return functools.partial(torch._inductor.aoti_load_package(str(folder / "compile.pt2")), *inputs)


def _onnx(model: Any, inputs: Any, folder: Path, device: str, threads: int) -> Callable[[], Any]:
    import _plain

    from exporter import targets

    _plain.onnx(_plain.program(model, inputs), folder / "model.onnx")
    options = targets.Options(device=device, threads=threads)
    return functools.partial(targets.get("onnx").load(folder / "model.onnx", options).run, inputs)
