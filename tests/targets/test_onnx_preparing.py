"""What is changed in an exported program before its translation to ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import Outputs, require_same, translated

from exporter.core.errors import BothFailed
from exporter.core.size_range import Range


def inverses(x: torch.Tensor) -> Outputs:
    matrices = x @ x.mT + torch.eye(x.shape[1])
    return (
        torch.linalg.inv(matrices),
        matrices[0].inverse(),
        torch.linalg.solve(matrices, x),
        torch.linalg.solve(matrices, x[..., 0]),
        torch.linalg.solve(matrices, x.mT, left=False),
        torch.linalg.solve(matrices[:1], x[0]),
        torch.linalg.solve(matrices, x[0, :, 0]),
    )


def test_checks_for_singular_matrices_are_left_out(tmp_path: Path) -> None:
    sizes = {"length": Range(2, 9), "width": Range(2, 20)}
    require_same(inverses, sizes, ((2, 4, 5), (2, 2, 20), (2, 9, 3)), tmp_path, rtol=1e-4)


def skewed(x: torch.Tensor) -> Outputs:
    matrices = torch.zeros(x.shape[0], 3, 3)
    matrices[:, 0, 1], matrices[:, 1, 0] = -x[:, 0, 0], x[:, 0, 1]
    return torch.linalg.inv(torch.eye(3) + matrices), torch.linalg.solve(torch.eye(3) + matrices, x[:, :3, :2])


def test_checks_are_left_out_where_the_whole_program_is_decomposed(tmp_path: Path) -> None:
    sizes = {"length": Range(3, 9), "width": Range(2, 20)}
    require_same(skewed, sizes, ((2, 4, 5), (2, 3, 20), (2, 9, 3)), tmp_path, rtol=1e-4)


def test_error_codes_are_refused(tmp_path: Path) -> None:
    def regular(x: torch.Tensor) -> Outputs:
        inverse, info = torch.linalg.inv_ex(x @ x.mT)
        return (torch.where(info[:, None, None] == 0, inverse, 0.0),)

    with pytest.raises(BothFailed, match=r"the error codes of linalg.inv_ex"):
        translated(regular, torch.randn(2, 4, 5), {}, tmp_path)


def test_the_operator_without_a_translation_is_named_although_a_check_reads_error_codes(tmp_path: Path) -> None:
    def filtered(x: torch.Tensor) -> Outputs:
        matrices = x @ x.mT + torch.eye(4)
        return torch.linalg.cholesky(matrices), torch.linalg.solve(matrices, x)

    with pytest.raises(BothFailed, match=r"No ONNX function found for <OpOverload\(op='aten.linalg_cholesky_ex'"):
        translated(filtered, torch.randn(2, 4, 5), {}, tmp_path)


def test_sums_of_flags(tmp_path: Path) -> None:
    module, run = translated(
        lambda x: ((x > 0) + (x > 1), torch.add(x > 0, x < -1), (x > 0) * (x < 1)),
        torch.randn(3, 5),
        {"rows": Range(2, 8), "columns": Range(2, 8)},
        tmp_path,
    )
    x = torch.randn(7, 4)
    for got, wanted in zip(run(x), module(x), strict=True):
        assert torch.equal(torch.as_tensor(got), wanted)
