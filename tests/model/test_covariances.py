"""Covariances and correlations, which torch computes with checks of values."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, covariances
from exporter.model.flattening import FlatModule, flatten_inputs

INPUTS = (
    torch.randn(3, 7),
    torch.randn(7),
    torch.tensor(2.0),
    torch.randn(3, 1),
    torch.randn(2, 5, dtype=torch.complex64),
    torch.arange(12).reshape(3, 4),
    torch.tensor([[1.0, 2.0, torch.inf], [0.0, torch.nan, 1.0]]),
)


@pytest.mark.parametrize("x", INPUTS)
def test_values_are_torchs(x: torch.Tensor) -> None:
    with warnings.catch_warnings():  # of too few observations
        warnings.simplefilter("ignore")
        expected = [torch.cov(x, correction=number) for number in (0, 1, 2)]
        expected += [x.cov(), torch.corrcoef(x), x.corrcoef()]
    with covariances.traced():
        found = [torch.cov(x, correction=number) for number in (0, 1, 2)]
        found += [x.cov(), torch.corrcoef(x), x.corrcoef()]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_weights_are_left_to_torch() -> None:
    x, weights = torch.randn(2, 4), torch.tensor([1, 2, 1, 3])
    expected = torch.cov(x, fweights=weights)
    with covariances.traced():
        assert torch.equal(torch.cov(x, fweights=weights), expected)


class Covariances(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cov(x), x.T.corrcoef()


def test_a_capture_keeps_the_sizes() -> None:
    x = torch.randn(3, 5)
    flat = FlatModule(Covariances(), flatten_inputs(Covariances(), {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("rows", "columns"))
    ranges = {"rows": Range(2, 8), "columns": Range(2, 16)}
    found = capture.capture(flat, (x,), Contract("covariances", (spec,), (), ranges))
    assert found.fixed == ()
    for rows, columns in ((3, 5), (2, 2), (8, 16)):
        given = torch.randn(rows, columns)
        for one, other in zip(found.program.module()(given), Covariances()(given), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
