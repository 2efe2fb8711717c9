"""torch.istft in exported programs, as operators that accept any length.

The operator `aten.istft` takes its `length` as a constant, so torch.export fixes the sizes that it is computed from,
and torch.onnx turns it into a graph that onnxruntime does not accept.

Source: aten/src/ATen/native/SpectralOps.cpp, whose check of the windows' sum is left out: where the sum is zero, torch
raises an error, and the program returns values that are not finite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Replace torch.istft with `Transform.invert` where its result is real."""
    usual = torch.istft

    def either(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        complex_result = len(args) > 8 or kwargs.get("return_complex", False)
        if complex_result or not input.is_complex():
            return usual(input, *args, **kwargs)
        kwargs.pop("return_complex", None)
        return Transform(*args, **kwargs).invert(input)

    with mock.patch.object(torch, "istft", either), mock.patch.object(torch.Tensor, "istft", either):
        yield


@dataclass(frozen=True)
class Transform:
    """A short-time Fourier transform, with the parameters of torch.istft in their order."""

    n_fft: int
    hop_length: int | None = None
    win_length: int | None = None
    window: torch.Tensor | None = None
    center: bool = True
    normalized: bool = False
    onesided: bool | None = None
    length: int | None = None  # or a torch.SymInt

    def invert(self, input: torch.Tensor) -> torch.Tensor:
        """Return the real signals (batch, time) of spectra (batch, frequencies, frames), like torch.istft.

        Spectra without a batch give a signal without one.
        """
        spectra = input if input.dim() == 3 else input.unsqueeze(0)
        spectra, frames, onesided = spectra.transpose(1, 2), spectra.shape[2], self.n_fft // 2 + 1
        if spectra.shape[2] != onesided:
            spectra = spectra[..., :onesided]
        window = self._window(input.real)
        norm, hop = "ortho" if self.normalized else "backward", self.hop_length or self.n_fft // 4
        signal = _overlap(torch.fft.irfft(spectra, self.n_fft, norm=norm) * window, hop)
        weight = _overlap(window.square().expand(1, frames, self.n_fft), hop)
        start = self.n_fft // 2 if self.center else 0
        length = self.length
        if length is None:
            length = hop * (frames - 1) + self.n_fft - 2 * start
        else:  # zeros where the frames end before
            signal = torch.nn.functional.pad(signal, (0, length))
            weight = torch.nn.functional.pad(weight, (0, length), value=1.0)
        made = signal.narrow(1, start, length) / weight.narrow(1, start, length)
        return made if input.dim() == 3 else made.squeeze(0)

    def _window(self, like: torch.Tensor) -> torch.Tensor:
        """Return the window's n_fft values, with zeros on both sides of a shorter one."""
        size = self.win_length or self.n_fft
        window = like.new_ones(size) if self.window is None else self.window
        left = (self.n_fft - size) // 2
        return torch.nn.functional.pad(window, (left, self.n_fft - size - left)) if size < self.n_fft else window


def _overlap(parts: torch.Tensor, hop: int) -> torch.Tensor:
    """Return the sums (batch, time) of parts (batch, frames, samples), each of which begins `hop` after the last."""
    frames, size = parts.shape[1:]
    total = size + hop * (frames - 1)
    return torch.nn.functional.fold(parts.transpose(1, 2), (1, total), (1, size), stride=(1, hop)).flatten(1)
