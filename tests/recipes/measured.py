"""A model with its own samples and metric, and recipes in which these are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(1, 4, 3, padding=1)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.linear(self.convolution(x[:, None]).relu().amax(-1))}


class measured:
    """Samples of several lengths; the metric is the mean score of the first class."""

    sizes = {"batch": (1, 8), "length": (4, 64)}
    load = staticmethod(lambda weights: Classifier().eval())

    @staticmethod
    def inputs(batch: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, length)}

    @staticmethod
    def samples() -> Iterator[dict[str, torch.Tensor]]:
        for length in (8, 16, 31):
            yield {"x": torch.linspace(-1, 1, length).repeat(1, 1)}

    @staticmethod
    def metric(outputs: dict[str, torch.Tensor], sample: dict[str, torch.Tensor]) -> float:
        assert set(outputs) == {"scores"}
        return float(outputs["scores"][:, 0].mean()) + sample["x"].shape[1]


class metric_raises(measured):
    @staticmethod
    def metric(outputs: dict[str, torch.Tensor], sample: Any) -> float:
        return float(outputs["logits"].mean())  # there are none


class metric_returns_text(measured):
    @staticmethod
    def metric(outputs: dict[str, torch.Tensor], sample: Any) -> Any:
        return "good"


class metric_alone(measured):
    samples = None  # type: ignore[assignment]


class sample_does_not_fit(measured):
    @staticmethod
    def samples() -> Iterator[dict[str, torch.Tensor]]:
        yield {"x": torch.zeros(1, 65)}


class samples_raise(measured):
    @staticmethod
    def samples() -> Iterator[dict[str, torch.Tensor]]:
        raise FileNotFoundError("the recordings are gone")


def fast() -> nn.Module:
    """A function that makes the model; its samples and metric are separate functions."""
    return Classifier().eval()


fast_inputs, fast_samples, fast_metric = measured.inputs, measured.samples, measured.metric


class Stream(nn.Module):
    """The average of all frames so far, for each item of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.h: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.h is None or self.h.shape[0] != x.shape[0]:
            self.h = torch.zeros(x.shape[0], 4, dtype=x.dtype, device=x.device)
        self.h = 0.5 * self.h + x
        return self.linear(self.h)


class streamed:
    """Its samples are the calls of one sequence."""

    sizes = {"batch": (1, 8)}
    batches = (2, 2, 2)

    @staticmethod
    def load(weights: str) -> nn.Module:
        torch.manual_seed(0)
        return Stream()

    @staticmethod
    def inputs(batch: int = 3) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 4)}

    @classmethod
    def samples(cls) -> Iterator[dict[str, torch.Tensor]]:
        for index, batch in enumerate(cls.batches):
            yield {"x": torch.full((batch, 4), float(index + 1))}

    @staticmethod
    def metric(outputs: dict[str, torch.Tensor], sample: dict[str, torch.Tensor]) -> float:
        return float(outputs["output"].sum())


class streamed_of_two_sizes(streamed):
    batches = (2, 3)
