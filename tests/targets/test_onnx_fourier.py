"""Fourier transforms of dynamic length in ONNX models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import Function, Outputs, translated

from exporter.core.size_range import Range

SIZES = {"channels": Range(1, 8), "length": Range(2, 128)}


def convolution(u: torch.Tensor) -> Outputs:
    length = u.shape[-1]
    kernel = torch.exp(-0.1 * torch.arange(length))
    product = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
    return (torch.fft.irfft(product, n=2 * length)[..., :length],)


def lengths(u: torch.Tensor) -> Outputs:
    length, z = u.shape[-1], torch.fft.rfft(u)
    return (
        torch.fft.irfft(z, n=length),
        torch.fft.irfft(z, n=2 * length + 1, norm="ortho"),
        torch.fft.irfft(z, n=length - 1, norm="forward"),
        torch.fft.irfft(z),
        torch.fft.irfft(z, n=2),
        torch.fft.rfft(u[0, 0], n=3 * length),
        torch.fft.rfft(u, n=2),
        torch.fft.hfft(z),
        torch.fft.rfft(u, norm="ortho"),
    )


def axes(u: torch.Tensor) -> Outputs:
    _, channels, length = u.shape
    double = torch.fft.rfft2(u, s=(2 * channels, 2 * length))
    return (
        torch.fft.irfft2(double * double, s=(2 * channels, 2 * length))[:, :channels, :length],
        torch.fft.irfft(torch.fft.rfft(u, n=3 * channels, dim=1), n=3 * channels, dim=1)[:, :channels],
        torch.fft.irfft(torch.fft.rfft(u, dim=0), n=channels, dim=0),
        torch.fft.rfft(u.sum((0, 1)), n=2 * length),
    )


@pytest.mark.parametrize("compute", [convolution, lengths, axes])
def test_any_length_gives_torchs_result(compute: Function, tmp_path: Path) -> None:
    module, run = translated(compute, torch.randn(2, 4, 16), SIZES, tmp_path)
    for shape in ((2, 4, 16), (2, 8, 128), (2, 1, 17), (2, 3, 2), (2, 2, 31)):
        u = torch.randn(shape)
        for got, wanted in zip(run(u), module(u), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
