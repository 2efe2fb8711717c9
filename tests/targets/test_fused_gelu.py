"""Which linear layers are fused with GELU, and only where it is worth it and nothing else is asked for.

The CPU's kernel of the fused operator rounds before an exact GELU; tests/gpu/test_fused_gelu.py has the GPU's numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages
from torch._inductor import config as inductor

from exporter.targets import _fused_gelu, _half_gelu

FUSED = "aoti_torch_cpu__addmm_activation("
SHAPES = {"x": {0: torch.export.Dim("batch", max=64)}}


class Layers(torch.nn.Module):
    """A linear layer before GELU, and one whose result is also returned."""

    def __init__(self, approximate: str = "none", width: int = 64, bias: bool = True) -> None:
        super().__init__()
        self.approximate = approximate
        self.inner, self.outer = torch.nn.Linear(16, width, bias), torch.nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = torch.nn.functional.gelu(self.inner(x), approximate=self.approximate)
        outer = self.outer(inner)
        return torch.nn.functional.gelu(outer, approximate=self.approximate), outer


def build(
    model: Layers, dtype: torch.dtype, path: Path, x: torch.Tensor | None = None, fallback: tuple[str, ...] = ()
) -> tuple[Path, set[str]]:
    """Compile the layers for the input `x`, or for a dynamic batch of rows."""
    torch.manual_seed(0)
    example = torch.randn(3, 5, 16) if x is None else x
    shapes = SHAPES if x is None else None
    program = torch.export.export(model.to(dtype), (example.to(dtype),), dynamic_shapes=shapes).run_decompositions()
    with _half_gelu.compiled(), _fused_gelu.compiled(fallback, ("cpu",)) as approximated:
        return packages.build(program, path), approximated


@pytest.mark.parametrize(
    ("dtype", "approximate"), [(torch.bfloat16, "none"), (torch.bfloat16, "tanh"), (torch.float16, "tanh")]
)
def test_a_layer_that_only_gelu_reads_is_fused(dtype: torch.dtype, approximate: str, tmp_path: Path) -> None:
    model = Layers(approximate)
    package, approximated = build(model, dtype, tmp_path / "layers.pt2")
    assert packages.sources(package).count(FUSED) == 1  # the other layer's result is returned
    assert len(approximated) == (approximate == "none")
    runner = torch._inductor.aoti_load_package(str(package))
    for batch in (3, 7):
        x = torch.randn(batch, 5, 16).to(dtype)
        wanted = model.double()(x.double())
        model.to(dtype)
        for got, exact, eager in zip(runner(x), wanted, model(x), strict=True):
            error, own = (got.double() - exact).square().mean().sqrt(), (eager.double() - exact).square().mean().sqrt()
            assert error < 2 * own


@pytest.mark.parametrize(
    ("model", "dtype", "x", "fallback"),
    [
        (Layers(), torch.float32, None, ()),
        (Layers(), torch.float16, None, ()),  # the approximation's error exceeds its rounding
        (Layers(), torch.bfloat16, None, ("aten.gelu",)),
        (Layers(), torch.bfloat16, None, ("aten.addmm.default",)),
        (Layers(bias=False), torch.bfloat16, None, ()),
        (Layers(width=1), torch.bfloat16, None, ()),
        (Layers(), torch.bfloat16, torch.randn(1, 16), ()),
    ],
    ids=["float32", "float16", "no gelu", "no addmm", "no bias", "one column", "one row"],
)
def test_other_layers_are_not_changed(
    model: Layers, dtype: torch.dtype, x: torch.Tensor | None, fallback: tuple[str, ...], tmp_path: Path
) -> None:
    package, approximated = build(model, dtype, tmp_path / "layers.pt2", x, fallback)
    assert FUSED not in packages.sources(package)
    assert not approximated


def test_templates_apply_gelu_themselves(tmp_path: Path) -> None:
    with inductor.patch({"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN"}):
        package, _ = build(Layers(), torch.bfloat16, tmp_path / "layers.pt2")
    assert FUSED not in packages.sources(package)


def test_the_note_counts_the_layers() -> None:
    assert _fused_gelu.note({"addmm"}) == ("the exact GELU of one layer is replaced by its tanh approximation",)
    assert _fused_gelu.note({"addmm", "addmm_1"})[0].startswith("the exact GELU of 2 layers is")
    assert _fused_gelu.note(set()) == ()
