"""Measure time and memory of a training step of a Vision Transformer, with more or less of it compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _rows import Bench, Rows

EAGER = "eager"
FORMS = (EAGER, "model compiled, loss outside", "model and loss compiled apart", "model and loss compiled as one")
LOSS_RTOL = {"float32": 1e-3, "bfloat16 autocast": 3e-2}


@dataclass(frozen=True)
class Size:
    """A Vision Transformer and its batch."""

    label: str
    batch: int
    image_size: int = 224
    patch_size: int = 16
    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    mlp_dim: int = 3072


CUDA = Size("ViT-B/16, batch 64", 64)
CPU = Size("ViT-B/16, batch 4", 4)
QUICK = Size("a small ViT (2 layers of width 64, images of 32²), batch 16", 16, 32, 8, 2, 2, 64, 128)


def measure(bench: Bench) -> list[dict[str, Any]]:
    """Return a rotation for each precision. Each row has its own process, one after another."""
    size = QUICK if bench.quick else CUDA if bench.device != "cpu" else CPU
    return [_rotation(bench, size, precision) for precision in LOSS_RTOL]


def _rotation(bench: Bench, size: Size, precision: str) -> dict[str, Any]:
    label = f"{size.label}, {precision}"

    def rows() -> Rows:
        found: Rows = {}
        for form in FORMS:
            found |= bench.measure("_training:step", (form,), label, form=form, precision=precision, size=asdict(size))
        return found

    return bench.rotation(label, EAGER, rows)


def step(
    channel: Any,
    form: str,
    precision: str,
    size: dict[str, Any],
    device: str,
    threads: int,
    budget: float,
    folder: str,
) -> Rows:
    """Return one row. Raises AssertionError if the first loss differs from eager's."""
    import torch
    from _timed import rotate, settings
    from torchvision.models import VisionTransformer

    given = Size(**size)
    with settings(device, threads, folder, cache=f"{folder}/training-cache"):  # this table has no compile times
        torch.manual_seed(0)
        shape = {name: value for name, value in size.items() if name not in ("label", "batch")}
        model = VisionTransformer(**shape).to(device)
        # With torchvision's zeros, every loss would be the same.
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)
        images = torch.randn(given.batch, 3, given.image_size, given.image_size, device=device)
        labels = torch.randint(0, 1000, (given.batch,), device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        criterion = torch.nn.CrossEntropyLoss()
        autocast = torch.autocast(device, torch.bfloat16, enabled=precision != "float32")
        loss_of = _forward(form, model, criterion)

        def train_step() -> torch.Tensor:
            optimizer.zero_grad()
            with autocast:
                loss = loss_of(images, labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        with torch.no_grad(), autocast:
            expected = criterion(model(images), labels)
        torch.testing.assert_close(train_step(), expected, rtol=LOSS_RTOL[precision], atol=0.0, check_dtype=False)
        _reset_peak(device)
        rows = rotate({form: train_step}, budget, form, device)
        rows[form]["facts"] = {"peak_mb": _peak_mb(device)}
    return rows


def _forward(form: str, model: Any, criterion: Any) -> Callable[[Any, Any], Any]:
    """Return the function from images and labels to the loss, in one of FORMS."""
    import torch

    if form == FORMS[3]:
        return torch.compile(lambda images, labels: criterion(model(images), labels))
    forward = model if form == EAGER else torch.compile(model)
    judge = torch.compile(criterion) if form == FORMS[2] else criterion
    return lambda images, labels: judge(forward(images), labels)


def _reset_peak(device: str) -> None:
    import torch

    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the current resident size: proc(5)
    else:
        torch.cuda.reset_peak_memory_stats()


def _peak_mb(device: str) -> float:
    import torch
    from _process import peak_mb

    return peak_mb() if device == "cpu" else torch.cuda.max_memory_allocated() / 1e6
