"""Convolutions of bytes in packages: right for every geometry, and left to the library where they must be."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import packages
from torch import nn

from exporter.targets import _amx, _convolutions, _gemm, _int8, _int8_convolutions


@pytest.fixture(autouse=True)
def _vnni() -> None:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if _gemm.vnni() is None or not isinstance(pick_vec_isa(), _gemm.vnni()):
        pytest.skip("this CPU has no VNNI, or this version of torch does not know it")


def package(
    module: nn.Module, folder: Path, examples: Sequence[torch.Tensor], sizes: object = None, **settings: object
) -> tuple[Any, str]:
    """Return the quantized module and the sources of a package of it, whose file is in the folder."""
    with torch.no_grad(), _int8_convolutions.compiled(), _convolutions.packing(), _convolutions.reading_biases():
        shapes = None if sizes is None else (sizes,)
        graph: Any = torch.export.export(module.eval(), (examples[0],), dynamic_shapes=shapes).module(
            check_guards=False
        )
        quantized = _int8.pt2e(graph, [(example,) for example in examples])
        program = torch.export.export(quantized, (examples[0],), dynamic_shapes=None if shapes is None else (shapes,))
        made = packages.build(
            program, folder / "net.pt2", **{"freezing": True, "cpp.dynamic_threads": True, **settings}
        )
    return quantized, packages.sources(made)


def calls(sources: str) -> int:
    """Return the number of different convolutions that the kernel computes."""
    return sources.count("exporter_int8_convolution::convolve<")


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Each(nn.Module):
    """Applies each convolution to the first pixels and channels of the input."""

    def __init__(self, *layers: tuple[nn.Conv2d, int, int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, *_ in layers)
        self.sizes = [size for _, *size in layers]

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(self.layers, self.sizes, strict=True)
        return [layer(x[:, : layer.in_channels, :height, :width]) for layer, (height, width) in pairs]


@pytest.mark.parametrize("tiles", ["as the CPU has", "not permitted", "not used"])
def test_every_geometry_is_right(tiles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are exact, so that the outputs in float32 differ by roundings only."""
    if tiles != "as the CPU has" and not _amx.used():
        pytest.skip("this CPU has no AMX")
    if tiles == "not permitted":
        monkeypatch.setattr(_amx, "DEFINITION", _amx.DEFINITION.replace("permitted = request()", "permitted = false"))
    if tiles == "not used":
        monkeypatch.setattr(_amx, "used", lambda: False)
    torch.manual_seed(0)
    module = Each(
        (nn.Conv2d(16, 32, 3, padding=1), 20, 31),  # rows of three blocks
        (nn.Conv2d(48, 64, 3, padding=1, bias=False), 7, 7),  # two rows in a block, and one is left
        (nn.Conv2d(64, 128, 3), 9, 5),  # weights larger than the image
        (nn.Conv2d(3, 64, 7, stride=2, padding=3), 33, 29),  # rows of the kernel that do not fill steps
        (nn.Conv2d(5, 32, (1, 3), padding=(2, 0)), 6, 18),
        (nn.Conv2d(7, 32, (3, 1), stride=(1, 3), padding=(0, 4)), 8, 16),
        (nn.Conv2d(64, 96, 1), 4, 6),  # without borders, so that the image is read in place
        (nn.Conv2d(32, 32, 1, stride=2), 15, 17),
        (nn.Conv2d(33, 32, 1), 3, 3),
        (nn.Conv2d(16, 32, 5), 5, 5),  # one pixel
        (nn.Conv2d(16, 32, 2, stride=4, padding=1), 30, 29),
        (nn.Conv2d(16, 32, 1), 1, 1),  # an image of one pixel
    )
    examples = [torch.randn(2, 64, 33, 31) + 0.3 for _ in range(2)]
    quantized, sources = package(module, tmp_path, examples, {0: torch.export.Dim("n", max=8)})
    assert calls(sources) == len(module.layers)
    loaded = torch._inductor.aoti_load_package(str(tmp_path / "net.pt2"))
    for batch, count in itertools.product((1, 3), (1, 2, 7)):
        x = torch.randn(batch, 64, 33, 31) + 0.3
        with torch.no_grad(), threads(count):
            for got, wanted in zip(loaded(x), quantized(x), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert loaded(torch.randn(0, 64, 33, 31))[0].shape == (0, 32, 20, 31)


class Block(nn.Module):
    """Convolutions whose outputs are bytes, with what is fused: an activation, or a sum with bytes or numbers.

    The last ones copy their inputs, so that the outputs show each byte.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.third, self.fourth = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.fifth = nn.Conv2d(32, 32, 3, padding=1)
        self.shows = nn.ModuleList(nn.Conv2d(32, 32, 1, bias=False) for _ in range(3))
        for layer in self.shows:
            layer.weight.data = torch.eye(32)[:, :, None, None]

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.relu(self.first(x))
        z = torch.relu(self.third(torch.relu(self.second(y))) + y)
        w = self.fourth(z) + z
        return [show(one) for show, one in zip(self.shows, (z, w, self.fifth(w)), strict=True)]


def test_bytes_are_right(tmp_path: Path) -> None:
    """A byte may differ by one where a tie is rounded the other way, and bytes that depend on it as little."""
    torch.manual_seed(0)
    module = Block()
    quantized, sources = package(module, tmp_path, [torch.randn(2, 32, 15, 20)], {0: torch.export.Dim("n", max=8)})
    assert calls(sources) == 8
    sums = re.findall(r"Result<(\w+), (\w+)> result\{.*(?<!nullptr), Y\}", sources)
    assert sorted(sums) == [("float", "float"), ("uint8_t", "uint8_t")], "what is added, and the outputs"
    x = torch.randn(3, 32, 15, 20)
    with torch.no_grad():
        wanted = quantized(x)
    for got, exact in zip(torch._inductor.aoti_load_package(str(tmp_path / "net.pt2"))(x), wanted, strict=True):
        step = float((exact.amax() - exact.amin()) / 200)
        assert float((got - exact).abs().max()) < 1.5 * step
        assert float(((got - exact).abs() > 0.1 * step).float().mean()) < 0.002
        assert len(exact.unique()) > 50, "the bytes differ"


class Left(nn.Module):
    """Convolutions that the kernel cannot compute."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped, self.dilated = nn.Conv2d(32, 32, 3, groups=2), nn.Conv2d(32, 32, 3, dilation=2)
        self.narrow = nn.Conv2d(32, 24, 3)
        self.clipped = nn.Conv2d(32, 32, 3)
        self.last, self.few, self.one = nn.Conv2d(32, 24, 1), nn.Conv2d(32, 8, 1), nn.Conv2d(32, 1, 1)
        self.biased = nn.Conv2d(32, 32, 1, bias=False)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        clipped = self.last(nn.functional.hardtanh(self.clipped(x), -0.5, 0.5))
        biased = nn.functional.conv2d(x, self.biased.weight, x[0, :, 0, 0] * 2)
        return [self.grouped(x), self.dilated(x), self.narrow(x), clipped, self.few(x), self.one(x), biased]


@pytest.mark.parametrize(
    ("dynamic", "settings"),
    [(False, {}), (True, {}), (False, {"cpp.simdlen": 256})],
    ids=["kinds", "any height", "another CPU"],
)
def test_other_convolutions_are_left_to_the_library(dynamic: bool, settings: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Each((nn.Conv2d(32, 32, 3), 40, 40)) if dynamic or settings else Left()
    sizes = {2: torch.export.Dim("h", min=8, max=40)} if dynamic else None
    quantized, sources = package(module, tmp_path, [torch.randn(1, 32, 12, 14)], sizes, **settings)
    assert "qconv" in sources
    assert calls(sources) == 0
    x = torch.randn(1, 32, 9 if dynamic else 12, 14)
    with torch.no_grad():
        for got, exact in zip(
            torch._inductor.aoti_load_package(str(tmp_path / "net.pt2"))(x), quantized(x), strict=True
        ):
            torch.testing.assert_close(got, exact, rtol=1e-4, atol=0.02)


def test_weights_are_stored_once(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(64, 64, 3), nn.Conv2d(64, 64, 3)
            self.second.weight.data = self.first.weight.data.clone()
            self.third = nn.Conv2d(64, 64, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.first(x), self.second(x[:, :, 1:, 1:]), self.third(x)

    x = torch.randn(1, 64, 12, 12)
    quantized, sources = package(Shared(), tmp_path, [x])
    sizes = [int(size) for size in re.findall(r"constants_info_\[\d+\]\.data_size = (\d+);", sources)]
    assert [size for size in sizes if size > 64 * 64] == [64 * 64 * 9] * 2
    with torch.no_grad():
        for got, wanted in zip(
            torch._inductor.aoti_load_package(str(tmp_path / "net.pt2"))(x), quantized(x), strict=True
        ):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
