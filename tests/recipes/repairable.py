"""Models that torch.export refuses as they are and that `exporter repair` can repair."""

from __future__ import annotations

import functools
import logging
import math

import numpy as np
import torch

log = logging.getLogger(__name__)


class Gate(torch.nn.Module):
    """Chooses between two layers by the mean of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Bright and dark images have a layer each.
        if x.mean() > 0:  # noqa: SIM108 - bright
            y = torch.relu(self.a(x))
        else:
            y = self.b(x)
        return y * 2


class EarlyReturn(torch.nn.Module):
    """Returns early, with statements in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not mask.any():
            return torch.zeros_like(x)
        kept = x * mask
        out = self.layer(kept)
        return out / mask.sum()


class Ternary(torch.nn.Module):
    """Flips the sign in a conditional expression."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if bool(x.sum() > 0) else -x) + 1


class Levels(torch.nn.Module):
    """Has a chain of elif, and a test with `and`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level = x.abs().max()
        if level > 2:
            x = x / level
        elif level < 0.5 and x.sum() != 0:
            x = x * 2
        else:
            x = torch.tanh(x)
        return x.cumsum(-1)


class Normalised(torch.nn.Module):
    """Reads a number from a tensor, and branches on it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        peak = x.abs().max().item()
        if peak > 1.0:
            x = x / peak
        return x - 0.5


class Trimmed(torch.nn.Module):
    """Cuts the input at the longest length of the batch."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max())
        kept = x[:, :longest]
        steps = torch.arange(longest)
        valid = steps[None] < lengths[:, None]
        return (kept * valid[..., None]).sum(1)


class Verbose(torch.nn.Module):
    """Prints and logs what it sees."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x)
        print(f"mean {y.mean().item():.3f}")
        if y.max() > 0.9:
            log.warning("saturated")
        return y * x


class Checked(torch.nn.Module):
    """Checks its input with an assert and with an exception."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not torch.isnan(x).any(), "the input has NaN"
        if x.abs().max() > 1000:
            raise ValueError("the input is too large")
        return torch.softmax(x, -1)


class Cached(torch.nn.Module):
    """Makes its positions once for every length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + positions(x.shape[0])[:, None]


@functools.lru_cache(maxsize=32)
def positions(length: int) -> torch.Tensor:
    """Return the position of every row."""
    return torch.arange(length, dtype=torch.float32) / 10


class Keyed(torch.nn.Module):
    """Keeps masks in a dict by length."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if n not in self.masks:
            self.masks[n] = torch.tril(torch.ones(n, n))
        return self.masks[n] @ x


class Overwritten(torch.nn.Module):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.data.mul_(2)
        x[:, 0] = 0
        return x.sum(-1)


class Tuples(torch.nn.Module):
    """Branches that assign two names, with statements of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if (x > 0).all():
            scaled = x * 0.5
            y = self.layer(scaled)
            z = y.mean(-1)
        else:
            y = self.layer(x) + 1
            z = y.amax(-1)
        return y, z


class Detour(torch.nn.Module):
    """Computes with NumPy in between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = np.tanh(x.numpy())
        return torch.from_numpy(y) * 2


class Rows(torch.nn.Module):
    """Works on a list of tensors, one for each length."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = [row[: int(n)].mean(0) for row, n in zip(x, lengths, strict=True)]
        return torch.stack(rows)


class Rooted(torch.nn.Module):
    """Divides by a number that the math module computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(x.square().sum() + 1)


class Shrinking(torch.nn.Module):
    """Returns one row or all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:
            x = x.sum(0, keepdim=True)
        return x * 2


class Clipped(torch.nn.Module):
    """Branches inside a helper, and returns a dict."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.clip(x, 1.0), "n": x.norm()}

    def clip(self, x: torch.Tensor, limit: float) -> torch.Tensor:
        norm = x.norm()
        if norm > limit:
            return x * (limit / norm)
        return x


def inputs(batch: int = 3) -> dict[str, torch.Tensor]:
    """Return rows of four numbers."""
    return {"x": torch.randn(batch, 4)}


def with_mask(batch: int = 3) -> dict[str, torch.Tensor]:
    """Return rows and which of their numbers count."""
    return {"x": torch.randn(batch, 4), "mask": torch.rand(batch, 4) > 0.5}


def with_lengths(batch: int = 3) -> dict[str, torch.Tensor]:
    """Return sequences of vectors with their lengths."""
    return {"x": torch.randn(batch, 6, 4), "lengths": torch.randint(1, 7, (batch,))}


MODELS = (
    ("gate", Gate, inputs),
    ("early", EarlyReturn, with_mask),
    ("ternary", Ternary, inputs),
    ("levels", Levels, inputs),
    ("normalised", Normalised, inputs),
    ("trimmed", Trimmed, with_lengths),
    ("verbose", Verbose, inputs),
    ("checked", Checked, inputs),
    ("cached", Cached, inputs),
    ("keyed", Keyed, inputs),
    ("overwritten", Overwritten, inputs),
    ("tuples", Tuples, inputs),
    ("detour", Detour, inputs),
    ("rows", Rows, with_lengths),
    ("rooted", Rooted, inputs),
    ("clipped", Clipped, inputs),
    ("shrinking", Shrinking, inputs),
)
for name, model, make in MODELS:
    globals().update({name: model, f"{name}_inputs": make})
