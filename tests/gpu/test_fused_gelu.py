"""GELU within the product before it, on a GPU: fused, and about as accurate as eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages

from exporter.targets import _fused_gelu, _half_gelu


class Layer(torch.nn.Module):
    """A linear layer before GELU."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate, self.linear = approximate, torch.nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.linear(x), approximate=self.approximate)


@pytest.mark.parametrize(
    ("dtype", "approximate"), [(torch.bfloat16, "none"), (torch.bfloat16, "tanh"), (torch.float16, "tanh")]
)
def test_a_layer_is_as_accurate_as_eager(dtype: torch.dtype, approximate: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Layer(approximate).to("cuda", dtype), torch.randn(64, 256).to("cuda", dtype)
    shapes = {"x": {0: torch.export.Dim("batch", max=512)}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes).run_decompositions()
    with _half_gelu.compiled(), _fused_gelu.compiled(()):
        package = packages.build(program, tmp_path / "layer.pt2", freezing=True)
    assert "aoti_torch_cuda__addmm_activation(" in packages.sources(package)
    runner = torch._inductor.aoti_load_package(str(package))
    for rows in (1, 2, 64, 512):
        x = torch.randn(rows, 256).to("cuda", dtype)
        eager, got = model(x), runner(x)
        exact = model.double()(x.double())
        model.to(dtype)
        error, own = ((one.double() - exact).square().mean().sqrt() for one in (got, eager))
        assert error < 1.2 * own
