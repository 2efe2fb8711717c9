"""torch.istft in exported programs, as operators that accept any length.

The operator `aten.istft` takes its `length` as a constant, so torch.export fixes the sizes that it is computed from,
and torch.onnx turns it into a graph that onnxruntime does not accept.

Source: aten/src/ATen/native/SpectralOps.cpp, whose check of the windows' sum is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

Size = int  # or a torch.SymInt


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Replace torch.istft by `istft` where its result is real."""
    usual = torch.istft

    def either(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        complex_result = len(args) > 8 or kwargs.get("return_complex", False)
        if complex_result or not input.is_complex():
            return usual(input, *args, **kwargs)
        return istft(input, *args, **{name: value for name, value in kwargs.items() if name != "return_complex"})

    with mock.patch.object(torch, "istft", either), mock.patch.object(torch.Tensor, "istft", either):
        yield


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Size | None = None,
) -> torch.Tensor:
    """Return the real signals (batch, time) of spectra (batch, frequencies, frames), like torch.istft.

    Spectra without a batch give a signal without one.
    """
    spectra = input if input.dim() == 3 else input.unsqueeze(0)
    hop, size = hop_length or n_fft // 4, win_length or n_fft
    frames = spectra.shape[2]
    if window is None:
        window = torch.ones(size, dtype=input.real.dtype, device=input.device)
    if size < n_fft:
        left = (n_fft - size) // 2
        window = torch.nn.functional.pad(window, (left, n_fft - size - left))
    spectra, onesided_size = spectra.transpose(1, 2), n_fft // 2 + 1
    if spectra.shape[2] != onesided_size:
        spectra = spectra[..., :onesided_size]
    parts = torch.fft.irfft(spectra, n_fft, norm="ortho" if normalized else "backward") * window
    signal = _overlap(parts, hop)
    weight = _overlap(window.square().expand(1, frames, n_fft), hop)
    start = n_fft // 2 if center else 0
    if length is None:
        length = hop * (frames - 1) + n_fft - 2 * start
    else:  # zeros where the frames end before
        signal = torch.nn.functional.pad(signal, (0, length))
        weight = torch.nn.functional.pad(weight, (0, length), value=1.0)
    made = signal.narrow(1, start, length) / weight.narrow(1, start, length)
    return made if input.dim() == 3 else made.squeeze(0)


def _overlap(parts: torch.Tensor, hop: int) -> torch.Tensor:
    """Return the sums (batch, time) of parts (batch, frames, samples), each of which begins `hop` after the last."""
    frames, size = parts.shape[1:]
    total = size + hop * (frames - 1)
    return torch.nn.functional.fold(parts.transpose(1, 2), (1, total), (1, size), stride=(1, hop)).flatten(1)
