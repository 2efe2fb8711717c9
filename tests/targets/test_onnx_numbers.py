"""Numbers computed from sizes in ONNX models."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from support.translating import Function, Outputs, translated

from exporter.core.size_range import Range


def counted(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    whole = (
        *(math.ceil(n * 0.1), math.floor(n * 0.7), int(n / 0.7), int(n * 1.1), round(n * 0.15), int(n**0.5)),
        *(int(n * n / 3 * 0.1), math.floor(n * 0.3 - 2), int(-(-n + 0.5) / 0.7), int((n + 0.1) / 0.7)),
    )
    return (x.sum() * (n * 0.3), torch.full((2,), n / 7) + x[0], *(x.new_ones(count) for count in whole))


def steps(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    return (torch.arange(0.0, 1.0, 1 / n), torch.arange(n * 0.7), torch.arange(1, n * 0.3, dtype=x.dtype), x[:n])


def negative(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    begin, padded = (n - 700) // 2, -(-n // 8) * 8
    return (
        *(x[: -(-n // 3)], x[begin : begin + 3], x * ((n - 32) // 5), x * ((n - 32) // -5), x * (-n // (n - 707))),
        torch.nn.functional.pad(x, (0, padded - n)).reshape(-1, 8),
    )


def remainders(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    rests = ((n * 0.7) % 7, (n * -0.7) % 7, n % 2.5, (n * 0.7) % -7, 12.5 % (n / 3))
    return (*(x * rest for rest in rests), x.new_ones(int((n * 0.7) % 7)), x.new_ones(int((n * -0.7) % 7)))


@pytest.mark.parametrize("function", [counted, steps, negative, remainders])
def test_numbers_are_as_exact_as_pythons(function: Function, tmp_path: Path) -> None:
    module, run = translated(function, torch.ones(12), {"length": Range(8, 700)}, tmp_path)
    for length in range(8, 701):
        x = torch.ones(length)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_number_of_tensors_stays_single(tmp_path: Path) -> None:
    """The graph's operators take float32, so that the result has the dtype that eager's has."""
    module, run = translated(lambda x: (x * (x.shape[0] / 3),), torch.ones(12), {"length": Range(8, 700)}, tmp_path)
    (got,), (wanted,) = run(torch.ones(9)), module(torch.ones(9))
    assert (got.dtype, wanted.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(got, wanted)


def test_a_size_is_divided_by_one_operator(tmp_path: Path) -> None:
    translated(lambda x: (x[: (x.shape[0] * 3 + 1) // 8],), torch.ones(12), {"length": Range(8, 700)}, tmp_path)
    counts = Counter(node.op_type for node in onnx.load(str(tmp_path / "model.onnx")).graph.node)
    assert (counts["Div"], counts["Mod"]) == (1, 0)
