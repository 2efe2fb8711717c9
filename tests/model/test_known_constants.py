"""Code that needs the values of constants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, KeptState, StateTensor, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, flattening
from exporter.model.state import carrying

PROMISE = Contract("m", (TensorSpec("x", "float32", ("batch", 4)),), (), {"batch": Range(1, 8)})


class Reads(nn.Module):
    """Reads flags, numbers and thresholds from buffers, and computes some from them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("started", torch.tensor(True))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("steps", torch.tensor(3))
        self.plain = torch.tensor([True, False])
        self.weight = nn.Parameter(torch.tensor([[0.5, 0.1], [0.2, 0.9]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if self.started else x * 3
        for at, flag in enumerate(self.flags):
            if flag:
                x = x + at
        x = x * int(self.steps + 1) + self.steps.item()
        scaled = self.weight / self.weight.sum()
        for row in range(2):
            for column in range(2):
                if scaled[row, column] > 0.2:
                    x = x + scaled[row, column]
        for at, flag in enumerate(self.plain):
            x = x * 2 if flag else x + at
        grid = torch.ones(2, 2) * self.weight
        row = grid[1]
        grid[1, 0] = 0.75
        x = x - 1 if row[0] > 0.5 else x
        times = torch.linspace(1, 0, 3)
        return x + 1 if times[0] > times[-1] else x


class Writes(nn.Module):
    """Writes to a constant before reading it: its value then depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limits", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limits = self.limits.clone()
        first = limits[0]
        limits[0] = x.sum()
        return x * 2 if first > 0 else x


class Overwrites(nn.Module):
    """Writes its input to a part of a constant, and reads it through a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limits = torch.zeros(2)
        first = limits[0]
        limits[0] = x.sum()
        return x * 2 if first > 0 else x


class Draws(nn.Module):
    """Branches on a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.rand_like(self.one) > 0.5 else x


class Values(nn.Module):
    """Branches on its input, mixed with a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > self.limit else x


def flat(model: nn.Module, width: int = 4) -> flattening.FlatModule:
    return flattening.FlatModule(model, flattening.flatten_inputs(model, {"x": torch.ones(3, width)})).eval()


@pytest.mark.parametrize(("started", "flag"), [(True, False), (False, True)])
def test_constants_choose_what_is_computed(started: bool, flag: bool) -> None:
    model = Reads()
    model.started.fill_(started)
    model.flags[1] = flag
    program = capture.capture(flat(model), (torch.ones(3, 4),), PROMISE).program
    x = torch.randn(5, 4)
    torch.testing.assert_close(program.module()(x)[0], model(x), rtol=0, atol=0)
    assert model.started.item() is started
    assert not [node for node in program.graph.nodes if "aten.item" in str(node.target)]


@pytest.mark.parametrize("model", [Writes(), Overwrites(), Draws(), Values()])
def test_other_values_are_rejected(model: nn.Module) -> None:
    with pytest.raises(ExportError, match="data-dependent"):
        capture.capture(flat(model), (torch.ones(3, 4),), PROMISE)


class Counting(nn.Module):
    """Counts its calls, and changes what it computes after some of them if a flag is set."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.register_buffer("gated", torch.tensor(gated))

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = count + 1
        return x * 2 if self.gated and count > 20 else x + 0, count


class Padded(nn.Module):
    """Reads a flag, and pads to a multiple: torch.export rejects the promised sizes at first, and captures again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("started", torch.tensor([True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (0, (8 - x.size(1) % 8) % 8))
        if not self.started:
            self.started.fill_(True)
        return x.reshape(x.size(0), -1, 8).mean(-1)


def test_constants_are_followed_in_each_capture() -> None:
    spec, sizes = TensorSpec("x", "float32", ("batch", "length")), {"batch": Range(1, 8), "length": Range(8, 100)}
    program = capture.capture(flat(Padded(), 40), (torch.ones(3, 40),), Contract("m", (spec,), (), sizes)).program
    for x in (torch.randn(3, 40), torch.randn(2, 43)):
        torch.testing.assert_close(program.module()(x)[0], Padded()(x))


def test_state_is_no_constant() -> None:
    spec = TensorSpec("x", "float32", (3, 4))
    kept = KeptState("inside", (StateTensor("count", "float32", (1,), 0.0),))
    promise = Contract("counting", (spec,), (spec,), {}, state=kept)
    x = torch.ones(3, 4)
    with pytest.raises(ExportError, match="data-dependent"):
        capture.capture(carrying.module(Counting(True), promise, "cpu"), (x,), promise)
    program = capture.capture(carrying.module(Counting(False), promise, "cpu"), (x,), promise).program
    assert torch.equal(program.module()(x)[0], x)
