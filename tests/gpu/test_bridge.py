"""The device that an exported graph names is not baked into its TorchScript."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from exporter.model.torchscript import bridge


class Positions(nn.Module):
    """Creates tensors on its input's device, from factory functions, from literals and in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(x.shape[0], device=x.device)[:, None]
        chosen = torch.cond(x.sum() > 0, lambda x: self.linear(x) + self.scale, lambda x: x * 2, (x,))
        return chosen + positions + torch.zeros(1, device=x.device), positions


@pytest.mark.parametrize("exported_on", ["cpu", "cuda"])
@pytest.mark.parametrize("loaded_on", ["cpu", "cuda"])
@pytest.mark.parametrize("frozen", [False, True])
def test_torchscript_runs_on_the_device_that_loads_it(exported_on: str, loaded_on: str, frozen: bool) -> None:
    model = Positions().to(exported_on)
    with torch.no_grad():
        program = torch.export.export(
            model, (torch.ones(3, 4, device=exported_on),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )
        scripted = bridge.from_exported(program)
        file = io.BytesIO()
        torch.jit.save(torch.jit.freeze(scripted) if frozen else scripted, file)
        file.seek(0)
        loaded = torch.jit.load(file, map_location=loaded_on)
        model.to(loaded_on)
        for x in (torch.ones(3, 4, device=loaded_on), -torch.ones(5, 4, device=loaded_on)):
            for got, want in zip(loaded(x), model(x), strict=True):
                assert got.device == want.device
                torch.testing.assert_close(got, want)
