"""Recipes of models whose state shows only in few calls, or is hidden from exporter."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch import nn


class _Rare:
    model: type[nn.Module]
    sizes = {"batch": (1, 16)}
    inputs = staticmethod(lambda batch=3: torch.randn(batch, 4))

    @classmethod
    def load(cls, weights: str) -> nn.Module:
        torch.manual_seed(0)
        return cls.model()


class _Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("s", torch.zeros(4))


class at_large_batches(_Rare):
    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x) + self.s
            if x.shape[0] > 5:
                self.s.copy_(0.5 * self.s + x.mean(0))
            return y


class at_large_values(_Rare):
    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x) + self.s
            if float(x.max()) > 30:
                self.s.copy_(0.5 * self.s + x.mean(0))
            return y


class of_two_modes(_Rare):
    """Its state is written at one size and read at another."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 1:
                return self.mix(x) + self.s
            if x.shape[0] > 5:
                self.s.copy_(x.mean(0))
            return self.mix(x)


class table_that_grows(_Rare):
    """Extends a table when it is too short, as for positions."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.table) < x.shape[0]:
                self.table = torch.arange(float(x.shape[0]))
            return x + self.table[: x.shape[0], None].to(x)


class alternating(_Rare):
    """Its state alternates between two values in an iterator, which an even number of calls hides."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sign = itertools.cycle([1.0, -1.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * next(self.sign)


class average_that_nobody_reads(_Rare):
    class model(_Keeping):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x)
            self.s.lerp_(y.mean(0), 0.1)
            self.calls += 1
            return y


class scratch(_Rare):
    """Each call overwrites the buffer before reading it."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.s.fill_(2.0)
            return self.mix(x) * self.s


class potential(_Rare):
    """Each call begins with zeros in the form of the buffer, as spiking networks do, and leaves its own sum there."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.s = torch.zeros_like(self.s)
            for part in self.mix(x):
                self.s = self.s * (self.s > 0.1).float() + part
            return x + self.s


class plan(_Rare):
    """The first call makes an object in place of None, and every call leaves its number there."""

    class model(_Keeping):
        def __init__(self) -> None:
            super().__init__()
            self.plan: Plan | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.plan is None:
                self.plan = Plan(self.mix.weight.sum())
            self.plan.last = len(x)
            return x * self.plan.factor


class hooks_from_the_first_call(_Rare):
    """Records a hidden state in a hook that it registers in its first call, as transformers does."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.ready = False
            self.seen: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if not self.ready:
                self.mix.register_forward_hook(lambda module, args, output: self.seen.append(output))
                self.ready = True
            self.seen.clear()
            y = self.mix(x).relu()
            return (y, *self.seen)


class more_than_hooks_from_the_first_call(hooks_from_the_first_call):
    """Its first call makes a table and an object too, behind the same flag."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.ready = False
            self.table: torch.Tensor | None = None
            self.plan: Plan | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                self.table, self.plan = torch.arange(4.0), Plan(torch.ones(()))
                self.plan.last = True
                self.mix.register_forward_hook(lambda module, args, output: None)
                self.ready = True
            assert self.table is not None
            return self.mix(x) + self.table


class another_first_output(hooks_from_the_first_call):
    """Registers a hook after what it observes, so that the first call returns something else."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)
            self.ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x)
            if not self.ready:
                self.mix.register_forward_hook(lambda module, args, output: output * 2)
                self.ready = True
            return y


class Plan:
    def __init__(self, factor: torch.Tensor) -> None:
        self.factor = factor
        self.last = 0


class fails_at_large_values(_Rare):
    """Looks up what its inputs name, like a recommender whose categories are floating-point numbers."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not x.any():
                self.calm = True
            return x + self.mix.weight[x.abs().long()].sum()


class average_that_large_values_read(_Rare):
    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x)
            self.s.lerp_(y.mean(0), 0.1)
            return torch.where(x.max() > 1e4, self.s, y)


class hangover_in_a_number(_Rare):
    """Stays on for some quiet inputs after a loud one; loud inputs, as all are in the search, hide the number."""

    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loud = bool(x.square().mean() > 0.05)
            self.left = 4 if loud else max(self.left - 1, 0)
            return x * 0 + float(loud or self.left > 0)


class runs_out_of_memory_after_a_loud_input(_Rare):
    class model(hangover_in_a_number.model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, found = self.left, super().forward(x)
            if self.left < before:
                raise MemoryError("no room")
            return found


class hangs_after_a_loud_input(_Rare):
    class model(hangover_in_a_number.model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before, found = self.left, super().forward(x)
            while self.left < before:
                pass
            return found


class draws_rarely(_Rare):
    """A draw of Python's random numbers seldom matters."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.mix(x)
            return 2 * y if random.random() < 0.03 else y


class draws_in_vain(_Rare):
    """A draw of NumPy's random numbers does not matter."""

    class model(_Keeping):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dropped = np.random.rand() < 0.1
            return self.mix(x) * (0.0 if self.training and dropped else 1.0)


class in_numpy(_Rare):
    class model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = np.zeros(4, np.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + torch.from_numpy(self.last)
            self.last = 0.5 * self.last + x.mean(0).numpy()
            return y
