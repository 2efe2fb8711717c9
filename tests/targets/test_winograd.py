"""Convolutions by Winograd's algorithm in packages: right at every size, and left to the library where they must be."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from exporter.targets import _convolutions, _gemm, _winograd

Settings = dict[str, object]
pytestmark = pytest.mark.skipif(not _gemm.usable(), reason="torch has no template for the kernel here")


class Net(nn.Module):
    """Convolutions with and without a bias, with both paddings, followed by each kind of operator that is fused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(32, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 64, 3, padding=(0, 2), bias=False)
        self.third = nn.Conv2d(64, 32, 3)
        self.same = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.first(x)
        z = nn.functional.silu(self.third(torch.relu(self.second(y))))
        shortcut = torch.relu(self.same(y) + y)
        return z, shortcut, self.same(shortcut) + shortcut.mean()


def package(module: nn.Module, folder: Path, example: torch.Tensor, sizes: object = None, **settings: object) -> Path:
    with torch.no_grad(), _convolutions.reading_before_writing(), _convolutions.packing(), _winograd.compiled():
        program = torch.export.export(module, (example,), dynamic_shapes=None if sizes is None else (sizes,))
        found = torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "net.pt2"), inductor_configs={"freezing": True, **settings}
        )
    return Path(found)


def sources(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp"))


def calls(path: Path) -> int:
    """Return the number of different convolutions that the kernel computes."""
    return sources(path).count("exporter_winograd::convolve<")


def run(path: Path, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = torch._inductor.aoti_load_package(str(path))(x)
    return (made,) if isinstance(made, torch.Tensor) else tuple(made)


def check(path: Path, module: nn.Module, x: torch.Tensor) -> None:
    """Compare with float64; a convolution adds up 576 products at most."""
    with torch.no_grad():
        exact = module.double()(x.double())
    module.float()
    for got, wanted in zip(run(path, x), (exact,) if isinstance(exact, torch.Tensor) else exact, strict=True):
        assert got.shape == wanted.shape
        torch.testing.assert_close(got.double(), wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("bits", [512, 256])
def test_every_size_is_right(bits: int, tmp_path: Path) -> None:
    module = Net().eval()
    sizes = {
        0: torch.export.Dim("n", max=16),
        2: torch.export.Dim("h", min=6, max=64),
        3: torch.export.Dim("w", max=64),
    }
    made = package(module, tmp_path, torch.randn(2, 32, 17, 20), sizes, **{"cpp.simdlen": bits})
    assert calls(made) == 5
    for size in ((2, 32, 17, 20), (1, 32, 6, 3), (3, 32, 9, 64), (16, 32, 33, 31), (1, 32, 7, 2)):
        check(made, module, torch.randn(size))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_any_number_of_threads_is_right(threads: int, tmp_path: Path) -> None:
    module = Net().eval()
    made = package(module, tmp_path, torch.randn(1, 32, 30, 30), **{"cpp.dynamic_threads": True})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(made, module, torch.randn(1, 32, 30, 30))
    finally:
        torch.set_num_threads(before)


def test_an_input_that_is_not_contiguous(tmp_path: Path) -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x[:, 8:40, 2:, 1:-1].flip(3)).transpose(2, 3)
            return y

    module, x = Sliced().eval(), torch.randn(2, 48, 20, 24)
    made = package(module, tmp_path, x)
    assert calls(made) == 1
    check(made, module, x)


class One(nn.Module):
    """One convolution of 3x3, with settings, of as many channels."""

    def __init__(self, channels: tuple[int, int] = (32, 32), **settings: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Conv2d(*channels, **{"kernel_size": 3, **settings})  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (One(stride=2), 30),
        (One(dilation=2), 30),
        (One(groups=2), 30),
        (One(kernel_size=5), 30),
        (One((32, 24)), 30),  # channels that do not fill the blocks
        (One((20, 32)), 30),
        (One(), 10),  # few tiles
    ],
)
def test_other_convolutions_are_left_to_the_library(module: One, size: int, tmp_path: Path) -> None:
    x = torch.randn(1, module.inner.in_channels, size, size)
    made = package(module.eval(), tmp_path, x)
    assert calls(made) == 0
    check(made, module, x)


def test_nothing_is_stored_twice(tmp_path: Path) -> None:
    """Transformed filters replace the others, unless a convolution that the kernel does not serve shares them."""

    class Shared(One):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x)
            return y + nn.functional.conv2d(x, self.inner.weight, stride=1, dilation=2, padding=1)

    x, stored = torch.randn(1, 64, 30, 30), []
    for module in (One((64, 64)), Shared((64, 64))):
        folder = tmp_path / type(module).__name__
        folder.mkdir()
        made = package(module.eval(), folder, x)
        check(made, module, x)
        found = re.findall(r"constants_info_\[\d+\]\.data_size = (\d+);", sources(made))
        stored.append([int(size) // 64 for size in found if int(size) > 64 * 64])
    assert [len(sizes) for sizes in stored] == [1, 2]
    assert stored[0][0] == 64 * 16 * 4


def test_not_a_number_stays(tmp_path: Path) -> None:
    class Activated(One):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(x))

    module, x = Activated().eval(), torch.randn(1, 32, 30, 30)
    x[0, 3, 5, 7] = torch.nan
    (got,) = run(package(module, tmp_path, x), x)
    assert torch.equal(got.isnan(), module(x).isnan())


def test_a_smaller_cache_makes_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = dict(torch.cpu.get_capabilities()) | {"l2_cache_size": 1 << 10}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    module, x = One().eval(), torch.randn(1, 32, 30, 30)
    made = package(module, tmp_path, x)
    assert calls(made) == 1
    check(made, module, x)
