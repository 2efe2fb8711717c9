"""Images sampled at given places, near and far away, in ONNX models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter.core.size_range import Range

NEAR = (0.0, 0.3, -0.99, 1.0, -1.0, 1.7, -2.9, 6.9, -7.1, 15.99, -15.99, 16.01, -16.01, -33.3, 1000.7, -1e4)
FAR = (5e6, -5e6, 1.7e7, -1.7e7, 3.4e7, -3.4e7, 3e8, -1e10, 9e18, -9e18, 1e19, -1e19, 1e30)
MODES = [(2, "bilinear"), (2, "nearest"), (2, "bicubic"), (3, "bilinear"), (3, "nearest")]
WIDTHS = (5, 2, 1)


def places(*numbers: float) -> torch.Tensor:
    """Return places with each number in each coordinate, and in all."""
    rows = [torch.tensor([0.1, -0.4, 0.2]).repeat(4, 1) for _ in numbers]
    for row, number in zip(rows, numbers, strict=True):
        row[0, 0] = row[1, 1] = row[2, 2] = number
        row[3] = number
    return torch.cat(rows)


def sample(x: torch.Tensor, width: int, dims: int, mode: str, padding: str, align: bool) -> torch.Tensor:
    height = x.shape[0]  # also the number of places
    image = torch.cos(torch.arange(2 * height * width * (3 if dims == 3 else 1), dtype=torch.float32)).to(x.dtype)
    grid = x.reshape(*[1] * dims, -1, 3)[..., :dims]
    image = image.reshape(1, 2, height, width, *([3] if dims == 3 else []))
    return functional.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_far_away_are_sampled_as_in_torch(padding: str, align: bool, tmp_path: Path) -> None:
    def sampled(x: torch.Tensor) -> Outputs:
        return tuple(sample(x, width, *how, padding, align) for how in MODES for width in WIDTHS)

    sizes = {"length": Range(1, 3000), "coordinates": Range(3, 3)}
    _, run = translated(sampled, torch.randn(7, 3), sizes, tmp_path)
    far = [number for number in FAR if abs(number) < 1e9 or padding != "reflection"]  # torch counts reflections in int
    for x in (places(*NEAR, *far), places(*far), places(-3.4e7), places(far[-1])[:1], places(far[-2])[1:3]):
        for got, wanted in zip(run(x), sampled(x.double()), strict=True):
            torch.testing.assert_close(got, wanted.float(), rtol=1e-3, atol=1e-3)


def test_infinity_is_outside_and_nan_is_the_first_pixel(tmp_path: Path) -> None:
    def sampled(x: torch.Tensor) -> Outputs:
        zeros = (sample(x, 5, *how, "zeros", False) for how in MODES)
        return (*(sample(x, 5, *how, "border", align) for how in MODES[:2] for align in (True, False)), *zeros)

    module, run = translated(sampled, torch.randn(7, 3), {"length": Range(1, 50), "coordinates": Range(3, 3)}, tmp_path)
    x = places(math.inf, -math.inf)
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted.nan_to_num(0.0), rtol=1e-4, atol=1e-4)  # torch multiplies NaN by 0
    x = places(math.nan)
    for got, wanted in list(zip(run(x), module(x), strict=True))[:4]:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_points_behind_a_camera_get_the_border(tmp_path: Path) -> None:
    def projected(x: torch.Tensor) -> Outputs:
        image, moved = torch.cos(x[:, None]), x.new_tensor([0.2, -0.1, -3.0])
        points = torch.stack((x, x.flip(1), x * 0.1), 1) + moved.reshape(1, 3, 1, 1)
        grid = points[:, :2] / points[:, 2:].clamp(min=1e-8)
        grid = grid.permute(0, 2, 3, 1)
        return (functional.grid_sample(image, grid, mode="bilinear", padding_mode="border", align_corners=True),)

    sizes = {"height": Range(2, 64), "width": Range(2, 64)}
    module, run = translated(projected, torch.randn(2, 6, 8), sizes, tmp_path)
    for shape in ((2, 6, 8), (2, 2, 64), (2, 33, 3)):
        x = torch.randn(shape)
        (got,), (wanted,) = run(x), module(x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert wanted.abs().max() > 0.1


def test_places_may_be_used_more_than_once(tmp_path: Path) -> None:
    def sampled(x: torch.Tensor) -> Outputs:
        grid = torch.stack((x, x * 1e8), -1)
        modes = ("bilinear", "nearest", "bicubic")
        near, limited = torch.cos(x)[:, None], grid.clamp(min=-0.5)
        return tuple(
            functional.grid_sample(near, places, mode=mode, padding_mode=padding, align_corners=True)
            for places in (grid, limited)
            for mode in modes
            for padding in ("zeros", "border")
        )

    sizes = {"height": Range(2, 64), "width": Range(2, 64)}
    module, run = translated(sampled, torch.randn(2, 6, 8), sizes, tmp_path)
    for shape in ((2, 6, 8), (2, 2, 64), (2, 33, 3)):
        x = torch.randn(shape)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
