"""GELU within the product before it: found behind views, where it is worth it and nothing else is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import packages

from exporter.targets import _fused_gelu, _half_gelu

FUSED = "aoti_torch_cpu__addmm_activation"


class Layers(torch.nn.Module):
    """A linear layer before GELU, and one whose result is also returned."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.inner, self.outer = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = torch.nn.functional.gelu(self.inner(x), approximate=self.approximate)
        outer = self.outer(inner)
        return torch.nn.functional.gelu(outer, approximate=self.approximate), outer


def build(
    dtype: torch.dtype, approximate: str, path: Path, fallback: tuple[str, ...] = (), **asked: Any
) -> tuple[Path, Any]:
    torch.manual_seed(0)
    model, x = Layers(approximate).to(dtype), torch.randn(3, 5, 16).to(dtype)
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes).run_decompositions()
    with _half_gelu.compiled(), _fused_gelu.compiled(fallback, asked, ("cpu",)):
        return packages.build(program, path), model


@pytest.mark.parametrize(
    ("dtype", "approximate"), [(torch.bfloat16, "none"), (torch.bfloat16, "tanh"), (torch.float16, "tanh")]
)
def test_a_result_that_only_gelu_reads_is_fused(dtype: torch.dtype, approximate: str, tmp_path: Path) -> None:
    package, model = build(dtype, approximate, tmp_path / "layers.pt2")
    assert packages.sources(package).count(f"{FUSED}(") == 1  # the other layer's result is returned
    runner = torch._inductor.aoti_load_package(str(package))
    for batch in (3, 7):
        x = torch.randn(batch, 5, 16).to(dtype)
        wanted = model.double()(x.double())
        model.to(dtype)
        for got, exact, eager in zip(runner(x), wanted, model(x), strict=True):
            error, own = (got.double() - exact).square().mean().sqrt(), (eager.double() - exact).square().mean().sqrt()
            assert error < 2 * own


@pytest.mark.parametrize(
    ("dtype", "fallback", "settings"),
    [
        (torch.float32, (), {}),
        (torch.float16, (), {}),  # the approximation's error exceeds its rounding
        (torch.bfloat16, ("aten.gelu",), {}),
        (torch.bfloat16, ("aten.addmm.default",), {}),
        (torch.bfloat16, (), {"max_autotune_gemm": True}),
    ],
)
def test_nothing_else_is_changed(
    dtype: torch.dtype, fallback: tuple[str, ...], settings: dict[str, bool], tmp_path: Path
) -> None:
    package, _ = build(dtype, "none", tmp_path / "layers.pt2", fallback, **settings)
    assert FUSED not in packages.sources(package)
