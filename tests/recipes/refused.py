"""Models in the style of published code that torch.export refuses; not all of them can be repaired."""

from __future__ import annotations

import logging
import math
import warnings

import torch
from torch import nn

logger = logging.getLogger("refused")


class Attention(nn.Module):
    """Masks its scores only if there is something to mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        if mask is not None and not mask.all():
            scores = scores.masked_fill(~mask[:, None], float("-inf"))
        return scores.softmax(-1) @ self.v(x)


class Denoiser(nn.Module):
    """Returns early for silence, and scales by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        rms = torch.sqrt((audio**2).mean())
        if rms < 1e-3:
            logger.debug("silence")
            return torch.zeros_like(audio)
        gain = min(1.0 / float(rms), 10.0)
        audio = audio * gain
        y = self.conv(audio[:, None])[:, 0]
        return y / gain


class Pool(nn.Module):
    """Averages the tokens of each group; the number of groups is a value."""

    def forward(self, tokens: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = []
        for i in range(ids.max().item() + 1):
            group = tokens[ids == i]
            out.append(group.mean(0) if len(group) else torch.zeros(4))
        return torch.stack(out).sum(0)


class Normalizer(nn.Module):
    """Guesses the range of an image, works in place, and warns."""

    def forward(self, img: torch.Tensor) -> torch.Tensor:
        if img.max() > 1.5:
            img = img / 255.0
        img -= img.mean(dim=(1, 2), keepdim=True)
        if torch.isnan(img).any():
            warnings.warn("nan in image", stacklevel=2)
            img = torch.nan_to_num(img)
        return img


class Router(nn.Module):
    """Sends the batch to one of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.gate = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = self.gate(x.mean(0)).argmax()
        return self.experts[best](x)


class Beam(nn.Module):
    """Returns a tuple early, and writes through a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.out(self.emb(ids).mean(1))
        done = logits.argmax(-1) == 0
        if done.all():
            return logits, done
        elif done.any():  # noqa: RET505
            logits[done] = -1e9
        return logits.log_softmax(-1), done


class Boxes(nn.Module):
    """Asserts a range, and falls back to the best box."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert (scores >= 0).all() and (scores <= 1).all(), f"bad scores {scores.min()}"  # noqa: PT018
        keep = scores > 0.5
        if keep.sum() == 0:
            keep = scores >= scores.max()
        w = keep.float() * scores
        return (boxes * w[:, None]).sum(0) / w.sum()


class Quantizer(nn.Module):
    """Computes scale and zero point as Python numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lo, hi = x.min().item(), x.max().item()
        scale = (hi - lo) / 255
        zero = round(-lo / scale)
        return ((x / scale).round() + zero).clamp(0, 255)


class Digits(nn.Module):
    """Rounds a Python number to a digit, which torch.export cannot save."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.max().item(), 1)


def attention_inputs(batch: int = 2, length: int = 5) -> dict[str, torch.Tensor]:
    mask = torch.rand(batch, length) > 0.3
    mask[:, 0] = True
    return {"x": torch.randn(batch, length, 8), "mask": mask}


def denoiser_inputs(batch: int = 2, samples: int = 32) -> dict[str, torch.Tensor]:
    return {"audio": torch.randn(batch, samples)}


def pool_inputs(n: int = 6) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randn(n, 4), "ids": torch.randint(0, 3, (n,))}


def normalizer_inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    return {"img": torch.rand(batch, 6, 6)}


def router_inputs(batch: int = 3) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4)}


def beam_inputs(batch: int = 3) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(0, 10, (batch, 5))}


def boxes_inputs(n: int = 4) -> dict[str, torch.Tensor]:
    return {"boxes": torch.rand(n, 4), "scores": torch.rand(n)}


quantizer_inputs = digits_inputs = router_inputs
MODELS = ("attention", "denoiser", "pool", "normalizer", "router", "beam", "boxes", "quantizer")
attention, denoiser, pool, normalizer = Attention, Denoiser, Pool, Normalizer
router, beam, boxes, quantizer, digits = Router, Beam, Boxes, Quantizer, Digits
