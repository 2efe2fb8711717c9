"""Minimal models that accept only some sizes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Pool(nn.Module):
    """Ceil-mode pooling after a convolution, as in MTCNN's first network; eager accepts every size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.second = nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.pool(torch.relu(self.first(x))))


class View(nn.Module):
    """Cuts a row into pieces of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(x.shape[0], -1, 16)).mean(1)


class Patch(nn.Module):
    """Cuts an image into patches of 8 by 8 and embeds them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        patches = x.reshape(batch, channels, height // 8, 8, width // 8, 8).permute(0, 2, 4, 1, 3, 5)
        return self.layer(patches.flatten(3).flatten(1, 2))


class UNet(nn.Module):
    """Halves the image four times, then joins each result with its source."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(4 if i else 3, 4, 3, padding=1) for i in range(4))
        self.up = nn.ModuleList(nn.ConvTranspose2d(4, 4, 2, stride=2) for _ in range(4))
        self.join = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        for up, join in zip(self.up, self.join, strict=True):
            x = torch.relu(join(torch.cat([up(x), skips.pop()], dim=1)))
        return x


class Hop(nn.Module):
    """Audio in frames of 40 samples, through a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(40, 8, batch_first=True)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        return self.layer(audio.unflatten(-1, (-1, 40)))[0]


class Growing(torch.nn.Module):
    """Adds positions from a table that is replaced by a longer one when needed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(8.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.table.shape[0]:
            self.table = torch.arange(x.shape[1]) / 2
        return x + self.table[: x.shape[1]]


class Branch(nn.Module):
    """Computes something else from size 33 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) if x.shape[1] > 32 else x.mean(1)


class Seventh(nn.Module):
    """Computes something else at multiples of 7, which no usual case of a golden is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if x.shape[1] % 7 == 0 else x * 2


class Taller(nn.Module):
    """Computes something else for images that are more than twice as high as wide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[2] <= 2 * x.shape[3] else -x


class Wider(nn.Module):
    """Computes something else for images that are wider than high."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] <= x.shape[0] else -x


class Square(nn.Module):
    """Computes something else for squares, as DINO's positions do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if x.shape[0] == 3 else x + x
        if x.shape[1] == x.shape[2]:
            return x + x.transpose(1, 2)
        return y


class Halves(nn.Module):
    """Runs two batches as one; torch.export excludes a batch of 1, without need."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = self.layer(torch.cat([a, b])).chunk(2)
        return first * second


class Least(nn.Module):
    """A convolution with a kernel of 7, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, None])


class Primes(nn.Module):
    """Accepts sizes that no step describes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] not in (8, 11, 13, 17, 19, 23, 29, 31):
            raise ValueError(f"{x.shape[1]} will not do")
        return x * 2


class _Image:
    sizes = {"batch": (1, 4), "height": (8, 96), "width": (8, 96)}

    @staticmethod
    def inputs(batch: int = 1, height: int = 32, width: int = 48) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 3, height, width)}


class WithPast(torch.nn.Module):
    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, x], 1) + mask


class _Row:
    sizes = {"batch": (1, 4), "length": (1, 256)}

    @staticmethod
    def inputs(batch: int = 2, length: int = 64) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, length)}


class pool(_Image):
    sizes = {"batch": (1, 4), "height": (12, 64), "width": (12, 64)}
    load = staticmethod(lambda weights: Pool())


class view(_Row):
    load = staticmethod(lambda weights: View())


class patch(_Image):
    load = staticmethod(lambda weights: Patch())


class unet(_Image):
    load = staticmethod(lambda weights: UNet())


class hop(_Row):
    sizes = {"batch": (1, 4), "samples": (1, 800)}
    load = staticmethod(lambda weights: Hop())

    @staticmethod
    def inputs(batch: int = 1, samples: int = 400) -> dict[str, torch.Tensor]:
        return {"audio": torch.randn(batch, samples)}


class branch(_Row):
    sizes = {"batch": (1, 4), "length": (2, 64)}
    load = staticmethod(lambda weights: Branch())

    @staticmethod
    def inputs(batch: int = 2, length: int = 8) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, length)}


class halves:
    sizes = {"batch": (1, 8)}
    load = staticmethod(lambda weights: Halves())

    @staticmethod
    def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
        return {"a": torch.randn(batch, 4), "b": torch.randn(batch, 4)}


class seventh(_Row):
    load = staticmethod(lambda weights: Seventh())


class taller(_Image):
    sizes = {"batch": (1, 4), "height": (16, 80), "width": (16, 80)}
    load = staticmethod(lambda weights: Taller())


class square:
    sizes = {"batch": (1, 4), "height": (2, 16), "width": (2, 16)}
    load = staticmethod(lambda weights: Square())

    @staticmethod
    def inputs(batch: int = 2, height: int = 6, width: int = 9) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, height, width, 3)}


class least(_Row):
    load = staticmethod(lambda weights: Least())


class primes(branch):
    load = staticmethod(lambda weights: Primes())


class with_past:
    """Two sizes that add up, as those of new and cached tokens."""

    sizes = {"new": (1, 16), "past": (1, 64)}
    load = staticmethod(lambda weights: WithPast())

    @staticmethod
    def inputs(new: int = 3, past: int = 5) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(2, new), "past": torch.randn(2, past), "mask": torch.randn(2, new + past)}
