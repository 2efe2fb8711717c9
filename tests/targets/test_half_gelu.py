"""GELU in half precision: as exact as its rounding, and other dtypes and forms unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages

from exporter.targets import _half_gelu, _inductor


class Gelu(torch.nn.Module):
    """Both forms of GELU."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.gelu(x), torch.nn.functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_dtype_is_as_exact_as_torch(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.cat([torch.linspace(-12, 12, 20001), torch.tensor([torch.nan, -0.0, -60000, 60000])]).to(dtype)
    with _half_gelu.compiled(("cpu",)):
        made = packages.build(torch.export.export(Gelu(), (x,)), tmp_path / "gelu.pt2")
    half = dtype in (torch.bfloat16, torch.float16)
    assert (".erf(" in packages.sources(made)) != half
    for got, how in zip(torch._inductor.aoti_load_package(str(made))(x), ("none", "tanh"), strict=True):
        wanted = torch.nn.functional.gelu(x.double(), approximate=how)
        rounding = torch.finfo(dtype).eps / 2 if half else {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
        torch.testing.assert_close(
            got.double(), wanted, rtol=rounding * 1.01, atol=8e-7 if half else rounding, equal_nan=True
        )


def test_an_operator_that_is_left_to_torch_stays_with_it() -> None:
    from torch._inductor import lowering

    with _half_gelu.compiled():
        own = lowering.lowerings[torch.ops.aten.gelu.default]
        with _inductor.falling_back(["aten.gelu"], whole=False):
            assert lowering.lowerings[torch.ops.aten.gelu.default] is not own
