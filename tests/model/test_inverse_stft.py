"""torch.istft in exported programs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from exporter import targets
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import inverse_stft
from exporter.model.capture import Program, capture
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options

FRAMES = 40


@pytest.mark.filterwarnings("ignore:A window was not provided:UserWarning")
@pytest.mark.filterwarnings("ignore:The length of signal is shorter than the length parameter:UserWarning")
@pytest.mark.parametrize(
    ("size", "hop", "window", "center"),
    [(64, 16, None, True), (64, None, None, False), (60, 10, 40, True), (63, 16, 50, True), (64, 16, 64, False)],
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_result_is_that_of_torch(
    size: int, hop: int | None, window: int | None, center: bool, batch: tuple[int, ...]
) -> None:
    """For lengths that end before, at and after the last whole hop, and beyond all frames."""
    whole = (hop or size // 4) * (FRAMES - 1)
    lengths = None, 100, whole, whole + 5, *(() if window and window < size else (whole + 2 * size,))
    for normalized, onesided, length in itertools.product((False, True), (None, True, False), lengths):
        torch.manual_seed(0)
        bins = size if onesided is False else size // 2 + 1
        spectra = torch.randn(*batch, bins, FRAMES, dtype=torch.complex64)
        values = None if window is None else torch.rand(window) + 0.1
        given = size, hop, window, values, center, normalized, onesided, length
        torch.testing.assert_close(
            inverse_stft.Transform(*given).invert(spectra), torch.istft(spectra, *given), rtol=1e-4, atol=1e-5
        )


class Filter(torch.nn.Module):
    """Changes a spectrum and returns a signal of the input's length, as speech enhancement does."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.register_buffer("window", torch.hann_window(64))
        self.gain = torch.nn.Parameter(torch.rand(33, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.window, torch.Tensor)
        spectra = torch.stft(x, 64, 16, window=self.window, return_complex=True) * self.gain
        if self.whole:
            return torch.istft(spectra, 64, 16, window=self.window, length=x.shape[1])
        return spectra.istft(64, 16, window=self.window)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")  # eager, in istft
@pytest.mark.parametrize("whole", [True, False])
def test_sizes_stay_dynamic_in_programs_and_onnx(whole: bool, tmp_path: Path) -> None:
    x = torch.randn(2, 640)
    module = FlatModule(Filter(whole), flatten_inputs(Filter(whole), {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("batch", "audio"))
    made = TensorSpec("output", "float32", ("batch", "audio" if whole else None))
    promise = Contract("filter", (spec,), (made,), {"batch": Range(2, 8), "audio": Range(256, 4096)})
    captured = capture(module, (x,), promise)
    assert (captured.fixed, captured.bounds) == ((), {})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None)
    targets.get("onnx").export(program, tmp_path / "model.onnx", Options())
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    for audio in (256, 650, 1001):
        signal = torch.randn(3, audio)
        (expected,) = module(signal)
        torch.testing.assert_close(captured.program.module()(signal)[0], expected)
        torch.testing.assert_close(session.run((signal,))[0], expected, rtol=1e-4, atol=1e-5)


def test_complex_signals_are_left_to_torch() -> None:
    spectra = torch.randn(64, FRAMES, dtype=torch.complex64)
    window = torch.rand(64) + 0.1
    expected = torch.istft(spectra, 64, 16, window=window, onesided=False, return_complex=True)
    with inverse_stft.traced():
        given = torch.istft(spectra, 64, 16, window=window, onesided=False, return_complex=True)
    assert torch.equal(given, expected)
