"""Cross entropy in ONNX models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter.core.errors import ExportError
from exporter.core.size_range import Range

WEIGHT = torch.linspace(0.1, 1, 5)


def of_probabilities(x: torch.Tensor) -> Outputs:
    scores, wanted = x[:, :5], x[:, :5].flip(0).softmax(1)
    images = x[:, :5, None, None] * torch.tensor([1.0, -2.0])
    return (
        functional.cross_entropy(scores, wanted),
        functional.cross_entropy(scores, wanted, reduction="sum", weight=WEIGHT),
        functional.cross_entropy(scores, wanted, reduction="none", weight=WEIGHT, label_smoothing=0.1),
        functional.cross_entropy(images, images.softmax(1), weight=WEIGHT, label_smoothing=0.2),
        functional.cross_entropy(x[0], wanted[0].repeat(x.shape[1])[: x.shape[1]]),
    )


def smoothed(x: torch.Tensor) -> Outputs:
    scores, classes = x[:, :5], torch.arange(x.shape[0]) % 5
    images = x[:, :5, None] * torch.tensor([1.0, -2.0])
    return (
        functional.cross_entropy(scores, classes),
        functional.cross_entropy(scores, classes, label_smoothing=0.1),
        functional.cross_entropy(scores, classes, label_smoothing=0.1, reduction="sum", weight=WEIGHT),
        functional.cross_entropy(scores, classes, label_smoothing=0.1, reduction="none", ignore_index=1),
        functional.cross_entropy(scores.double(), classes, label_smoothing=0.1),
        functional.cross_entropy(
            images, classes[:, None].expand(-1, 2), label_smoothing=0.3, weight=WEIGHT, ignore_index=1
        ),
    )


@pytest.mark.parametrize("function", [of_probabilities, smoothed])
def test_values_are_torchs(function: object, tmp_path: Path) -> None:
    sizes = {"rows": Range(2, 8), "columns": Range(5, 20)}
    module, run = translated(function, torch.randn(3, 6), sizes, tmp_path)  # type: ignore[arg-type]
    for x in (torch.randn(8, 20), torch.randn(3, 5) * 100, torch.randn(2, 5) * 1e10, torch.zeros(2, 7)):
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_one_smoothed_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ExportError, AssertionError), match="one sample with label smoothing"):
        translated(
            lambda x: (functional.cross_entropy(x, x.argmax(), label_smoothing=0.1),),
            torch.randn(6),
            {"classes": Range(2, 8)},
            tmp_path,
        )
