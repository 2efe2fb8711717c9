"""Complex numbers in ONNX models, where torch lacks the translation of an operator."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import Function, Outputs, translated
from torch.nn import functional

from exporter.core.size_range import Range


def shapes(x: torch.Tensor) -> Outputs:
    z = torch.fft.rfft(x)
    return (
        *(z.reshape(-1), z.flatten(), z[..., None], z[None].squeeze(0), z.squeeze(-1), z[:, 1], z[0], z.T.squeeze()),
        *(z[:, None].expand(-1, 3, -1), z.unsqueeze(-3), z.repeat(2, 1), torch.stack(z[:2].unbind(0), -1)),
        *(functional.pad(z, (0, 1, 2, 0)), z[:, torch.tensor([0, 2])], z.index_select(1, torch.tensor([1, 0]))),
        *(z[:2].split(1)[1], torch.fft.fftshift(z), z.movedim(0, 1), z[:, :3].split_with_sizes([1, 2], -1)[1]),
    )


def arithmetic(x: torch.Tensor) -> Outputs:
    z, real = torch.fft.rfft(x), x[:, :1]
    line = torch.complex(x, torch.zeros_like(x))
    return (
        *(
            z**2,
            (z / 9) ** 3,
            torch.exp(1j * x),
            x * (1 + 2j),
            z * (2 - 1j),
            z * 3,
            z + 1j,
            z * 1j - 2,
            torch.exp(z / 9),
        ),
        *(torch.log(z.abs() + 1 + 1j * x[:, :1]), torch.sqrt(z.abs() + 1 + 1j * real), z[0].outer(z[0])),
        *(torch.einsum("ab,cb->ac", z, z), torch.einsum("ab->ba", z), z.cumsum(0)),
        *(
            torch.where(real > 0, z, z * 2),
            z.masked_fill(real > 0, 0),
            torch.where(real > 0, z, z[0]),
            torch.where(real > 0, z, real),
        ),
        *(
            line.sqrt(),
            line.log(),
            line.angle(),
            line**0.3,
            x + 1j,
            torch.einsum("...b,...b->...", z, z),
            z[..., None] * z[0],
        ),
        *(torch.complex(x, x) == torch.complex(x, x.flip(0)), torch.complex(x, (x - 9).log()).isnan(), z.isnan()),
        *(torch.zeros_like(z / 0) + z, torch.zeros_like(z, dtype=torch.float32), torch.roll(z, (-1, 7), (0, 1))),
    )


def written(x: torch.Tensor) -> Outputs:
    """What Fourier neural operators do: a product of some frequencies is written into zeros."""
    z = torch.fft.rfft(x)
    weight = torch.complex(torch.linspace(-1, 1, 6), torch.linspace(0, 1, 6)).reshape(3, 2)
    out = torch.zeros(x.shape[0], x.shape[1] // 2 + 1, dtype=torch.cfloat)
    out[:, :2] = torch.einsum("ba,ac->bc", z[:, :3], weight)
    out[0] = 1 - 2j
    out[1, 2:] = x[1, :1]
    picked = torch.full_like(z, 0).index_put((torch.tensor([0, 1]),), z[:1])
    return out, torch.fft.irfft(out, n=x.shape[1]), picked, torch.full((2, 3), 1j, dtype=torch.complex64) * x[:2, :1]


def spectrogram(x: torch.Tensor) -> Outputs:
    """What torchaudio's Spectrogram does for any number of channels."""
    waves = x.reshape(-1, x.shape[-1]).repeat(1, 9)
    found = torch.stft(waves, 16, 4, window=torch.hann_window(16), return_complex=True)
    return (found.reshape(x.shape[:1] + found.shape[-2:]).abs().pow(2),)


@pytest.mark.parametrize("function", [shapes, arithmetic, written, spectrogram])
def test_complex_numbers_are_pairs(function: Function, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"rows": Range(2, 8), "columns": Range(6, 20)}
    module, run = translated(function, torch.randn(3, 8), sizes, tmp_path)
    for shape in ((3, 8), (2, 6), (5, 17)):
        other = torch.randn(shape)
        for index, (got, wanted) in enumerate(zip(run(other), module(other), strict=True)):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=lambda said, i=index: f"{i}: {said}")
