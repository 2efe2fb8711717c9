"""A small network with several kinds of operators, for tests that look for one of them."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """An encoder block without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = self.norm(y + torch.tanh(self.second(y)))
        low, high = nn.functional.gelu(y).chunk(2, -1)
        return self.third(torch.cat([high, low], -1)).softmax(-1)


class Coarse(Block):
    """Has outliers in the weights of one layer, which int8 cannot represent."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.second.weight[:, 0] *= 3000


class Choosy(Coarse):
    """Checks its input, which torch.export rejects."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e9:
            x = x / 2
        return super().forward(x)


class Short(Block):
    """Has few operators, so that few parts of it are built."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(nn.functional.gelu(torch.tanh(self.first(x))).abs())


class Odds(nn.Module):
    """Takes the logarithm of a difference that rounds to zero in bf16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(1 - torch.sigmoid(8 * torch.tanh(x)))


class Confident(Block):
    """Ends with odds."""

    def __init__(self) -> None:
        super().__init__()
        self.odds = Odds()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odds(3 * torch.tanh(self.third(torch.tanh(self.second(self.first(x))))) + 2)


class Scale(nn.Module):
    """Multiplies its input."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Loud(Block):
    """Has values between two layers that are too large for fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Sequential(Scale(1e6), Scale(1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.norm(self.pair(self.first(x))))


class block:
    """A block with a dynamic batch."""

    sizes = {"batch": (1, 8)}
    kind: type[nn.Module] = Block

    def load(self, weights: str = "random") -> nn.Module:
        """Return the network."""
        torch.manual_seed(0)
        return self.kind().eval()

    def inputs(self, batch: int = 2) -> dict[str, torch.Tensor]:
        """Return rows of 16 numbers."""
        return {"x": torch.randn(batch, 16)}


class coarse(block):
    """The block with outliers."""

    kind = Coarse


class short(block):
    """The block with few operators."""

    kind = Short


class choosy(block):
    """The block with outliers that torch.export rejects."""

    kind = Choosy


class confident(block):
    """The block that ends with odds."""

    kind = Confident


class loud(block):
    """The block with large values."""

    kind = Loud


class Uneven(Block):
    """Has weights in one layer that int8 represents well enough for parity, but not for the metric."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.second.weight[:, 0] *= 100


class uneven(block):
    """The uneven block with samples, and a metric: minus the largest deviation from its outputs in float32."""

    kind = Uneven

    def samples(self) -> list[dict[str, torch.Tensor]]:
        """Return two samples."""
        generator = torch.Generator().manual_seed(3)
        return [{"x": torch.randn(4, 16, generator=generator)} for _ in range(2)]

    def metric(self, outputs: dict[str, torch.Tensor], sample: dict[str, torch.Tensor]) -> float:
        """Return a number that is 0 for exact outputs, and less for others."""
        return -float((outputs["output"] - self.load()(sample["x"]).detach()).abs().max())
