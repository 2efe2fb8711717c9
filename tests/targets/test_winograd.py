"""Convolutions by Winograd's algorithm in packages: right at every size, and left to the library where they must be."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from support import packages
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
        self.same, self.again = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x)
        z = nn.functional.silu(self.third(torch.relu(self.second(y))))
        shortcut = torch.relu(self.same(y) + y)
        in_place = torch.relu(self.again(torch.relu(self.same(shortcut))) + shortcut)  # of a value that none else reads
        return z, shortcut.mean((2, 3)), in_place


def package(module: nn.Module, folder: Path, example: torch.Tensor, sizes: object = None, **settings: object) -> Path:
    with contextlib.ExitStack() as changed:
        changed.enter_context(torch.no_grad())
        for patch in (_convolutions.reading_before_writing, _convolutions.reading_biases, _convolutions.packing):
            changed.enter_context(patch())
        changed.enter_context(_winograd.compiled())
        program = torch.export.export(module, (example,), dynamic_shapes=None if sizes is None else (sizes,))
        return packages.build(program, folder / "net.pt2", **{"freezing": True, **settings})


def calls(path: Path) -> int:
    """Return the number of different convolutions that the kernel computes."""
    return packages.sources(path).count("exporter_winograd::convolve<")


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
    packages.require_vectors(bits)
    module = Net().eval()
    sizes = {
        0: torch.export.Dim("n", max=16),
        2: torch.export.Dim("h", min=6, max=64),
        3: torch.export.Dim("w", max=64),
    }
    made = package(module, tmp_path, torch.randn(2, 32, 17, 20), sizes, **{"cpp.simdlen": bits})
    assert calls(made) == 6
    for size in ((2, 32, 17, 20), (1, 32, 6, 3), (3, 32, 9, 64), (16, 32, 33, 31), (1, 32, 7, 2)):
        check(made, module, torch.randn(size))


def test_any_number_of_threads_is_right(tmp_path: Path) -> None:
    module = Net().eval()
    made = package(module, tmp_path, torch.randn(1, 32, 30, 30), **{"cpp.dynamic_threads": True})
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
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
    """One 3x3 convolution with the given channels and settings."""

    def __init__(self, channels: tuple[int, int] = (32, 32), **settings: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Conv2d(*channels, **{"kernel_size": 3, **settings})  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


def test_other_convolutions_are_left_to_the_library(tmp_path: Path) -> None:
    class Others(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = (One(stride=2), One(dilation=2), One(groups=2), One(kernel_size=5), One((32, 24)), One((20, 32)))
            self.kinds, self.few, self.volume = nn.ModuleList(kinds), One(), nn.Conv3d(32, 32, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = [kind(x[:, : kind.inner.in_channels]) for kind in self.kinds]  # the last two do not fill blocks
            volume = self.volume(x[:, :, None, :12, :12].expand(-1, -1, 3, -1, -1))
            return *found, self.few(x[:, :, :10, :10]), volume

    module, x = Others().eval(), torch.randn(1, 32, 30, 30)
    made = package(module, tmp_path, x)
    assert calls(made) == 0
    check(made, module, x)


class Shared(One):
    """Applies a convolution twice, the second time to an image of half the size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        z: torch.Tensor = self.inner(torch.relu(y)[:, :, ::2, ::2]).mean() + y
        return z


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("pixels", "expected"), [(40, ["transformed"]), (20, ["plain", "transformed"])])
def test_filters_are_stored_once(pixels: int, expected: list[str], dynamic: bool, tmp_path: Path) -> None:
    """Transformed filters replace the others, unless a convolution of few tiles needs these."""
    module, x = Shared((64, 64)).eval(), torch.randn(2, 64, pixels, pixels)
    made = package(module, tmp_path, x, {0: torch.export.Dim("n", max=8)} if dynamic else None)
    check(made, module, x)
    plain, transformed = 64 * 64 * 9 * 4, 64 * 64 * 16 * 4
    kinds = dict.fromkeys((plain, plain // 64 * 72), "plain")  # oneDNN pads the channels to 72 for AVX2
    kinds[transformed] = "transformed"
    found = re.findall(r"constants_info_\[\d+\]\.data_size = (\d+);", packages.sources(made))
    assert sorted(kinds[int(size)] for size in found if int(size) > 64 * 64) == expected


class Mixed(nn.Module):
    """Convolutions with a bias that is a column of a table, each combined with the input in one of the ways."""

    def __init__(self, *ways: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.ModuleList(nn.Conv2d(32, 32, 3, bias=False) for _ in ways)
        self.ways = ways
        self.register_buffer("table", torch.randn(32, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = zip(self.inner, self.ways, strict=True)
        return tuple(how(nn.functional.conv2d(x, each.weight, self.table[:, 2], padding=1), x) for each, how in pairs)


@pytest.mark.parametrize(
    ("ways", "served"),
    [
        (
            (
                lambda y, x: nn.functional.leaky_relu(y, 0.3),
                lambda y, x: nn.functional.relu6(y),
                lambda y, x: nn.functional.hardtanh(y, -0.1, 0.2),
                lambda y, x: nn.functional.gelu(y, approximate="tanh"),
                lambda y, x: torch.add(y, x, alpha=2),  # inductor multiplies x first
                lambda y, x: nn.functional.leaky_relu(y + x, 0.3),
                lambda y, x: y + x.transpose(2, 3).contiguous().transpose(2, 3),
                lambda y, x: y + y.transpose(2, 3),
            ),
            True,
        ),
        ((lambda y, x: y - x, lambda y, x: y + x[:, :, :1, :1]), False),  # subtracted, and broadcast
    ],
)
def test_what_follows_is_right(
    ways: Sequence[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], served: bool, tmp_path: Path
) -> None:
    module, x = Mixed(*ways).eval(), torch.randn(1, 32, 20, 20)
    made = package(module, tmp_path, x)
    assert (calls(made) > 0) == served
    assert ("_convolution_pointwise" in packages.sources(made)) != served
    check(made, module, x)


def test_views_of_channels_last(tmp_path: Path) -> None:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList(One() for _ in range(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x.contiguous(memory_format=torch.channels_last)
            views = y[:, ::2], y[:, 16:48], y[:, :32, 3:, 2:]
            return tuple(inner(view) for inner, view in zip(self.inner, views, strict=True))

    module, x = Viewed().eval(), torch.randn(1, 64, 24, 24)
    made = package(module, tmp_path, x)
    assert calls(made) == 2, "the channels of the first view are not adjacent"
    check(made, module, x)


@pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="torch 2.11 cannot pack the weight of such a layer")
def test_no_images_at_all(tmp_path: Path) -> None:
    class Selected(One):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[x[:, 0, 0, 0] > 0])

    module = Selected().eval()
    made = package(module, tmp_path, torch.randn(4, 32, 20, 20), {0: torch.export.Dim("n", max=8)})
    assert run(made, -torch.ones(3, 32, 20, 20))[0].shape == (0, 32, 18, 18)
    check(made, module, torch.randn(6, 32, 20, 20))


def test_a_strided_bias_of_a_transposed_convolution(tmp_path: Path) -> None:
    class Transposed(Mixed):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (nn.functional.conv_transpose2d(x, self.inner[0].weight, self.table[:, 2]),)

    module, x = Transposed(lambda y, x: y).eval(), torch.randn(1, 32, 20, 20)
    check(package(module, tmp_path, x), module, x)


def test_a_profile_sees_the_convolution(tmp_path: Path) -> None:
    made = package(One().eval(), tmp_path, torch.randn(1, 32, 30, 30), **{"cpp.enable_kernel_profile": True})
    assert re.search(r"RecordFunctionHandle record_[^;]*;\s*exporter_winograd::convolve<", packages.sources(made))


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
