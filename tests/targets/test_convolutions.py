"""Convolutions of packages with dynamic sizes: their weights are packed, and their results are right at other sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages
from torch import nn

from exporter.core import environment
from exporter.targets import _convolutions, _int8


class Net(nn.Module):
    """Has convolutions of one channel, of one pixel, in groups, applied twice, and with additions in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.deep = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.twice = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.squeeze, self.grow = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, padding=2)
        self.back = nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x).relu()
        y = y + self.grouped(y * 2)
        y = self.deep(y)
        y = y + self.twice(self.twice(y.relu()).relu())
        scale = self.grow(self.squeeze(y.mean((2, 3), keepdim=True)).relu())
        return self.back(y * scale.mean((2, 3), keepdim=True)), scale


def test_packed_weights_of_dynamic_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    pack = _convolutions.pack
    monkeypatch.setattr(_convolutions, "pack", lambda gm: found.append(pack(gm)))
    net = Net().eval()
    sizes = {0: torch.export.Dim("batch", max=16), 2: 2 * torch.export.Dim("height", min=2, max=32)}
    with torch.no_grad(), _convolutions.reading_before_writing(), _convolutions.packing():
        program = torch.export.export(net, (torch.randn(2, 1, 16, 12),), dynamic_shapes=(sizes,))
        path = packages.build(program, tmp_path / "net.pt2", freezing=True)
        package = torch._inductor.aoti_load_package(str(path))
        assert found == [6], "all but the transposed one"
        for batch, height in ((2, 16), (1, 4), (7, 26), (16, 64)):
            x = torch.randn(batch, 1, height, 12)
            torch.testing.assert_close(tuple(package(x)), net(x), rtol=1e-4, atol=1e-5)


class Quantized(torch.nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(32, 32, 3), torch.nn.Conv2d(32, 40, 3)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.second(torch.relu(self.first(x)))]


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
def test_int8_weights_of_dynamic_sizes_are_packed_for_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without exporter's own kernel, which not every CPU has."""
    found: list[int] = []
    pack = _convolutions.pack_int8
    monkeypatch.setattr(_convolutions, "pack_int8", lambda gm: found.append(pack(gm)))
    torch.manual_seed(0)
    net = Quantized().eval()
    x, sizes = torch.randn(2, 32, 9, 9), {0: torch.export.Dim("batch", max=16)}
    with torch.no_grad(), _convolutions.packing():
        graph = torch.export.export(net, (x,), dynamic_shapes=(sizes,)).module(check_guards=False)
        quantized = _int8.pt2e(graph, [(x,)], narrow=not environment.adds_bytes_exactly())
        program = torch.export.export(quantized, (x,), dynamic_shapes=((sizes,),))
        path = packages.build(program, tmp_path / "net.pt2", freezing=True)
        assert found == [2]
        for batch in (1, 2, 7):
            x = torch.randn(batch, 32, 9, 9)
            (got,) = torch._inductor.aoti_load_package(str(path))(x)
            torch.testing.assert_close(got, quantized(x)[0], rtol=1e-4, atol=0.02)
