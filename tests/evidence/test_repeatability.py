"""Models that draw random numbers: always, rarely, without effect; and their artifacts in lower precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Run
from torch import nn

from exporter.core.parity_records import Tolerance
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import make_golden, repeatability
from exporter.evidence.findings import NOT_TO_THE_BIT

PLAN = make_golden.Plan([({"batch": size}, seed) for size in (2, 5) for seed in (0, 1)], {})


def unsteady(module: nn.Module) -> tuple[str, tuple[str, ...]]:
    def inputs(sizes: Any, seed: int) -> Any:
        return (torch.randn(sizes["batch"], 3, generator=torch.Generator().manual_seed(seed)),)

    findings = make_golden.make(module, inputs, PLAN, OutputTolerances(Tolerance(1e-4, 1e-5, 2.0)), "cpu")[1]
    return findings.unsteady, findings.notes


class Rare(nn.Module):
    """Changes one value in about 200 of the example's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.005, training=True)


class AtLargeSizes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) if x.shape[0] > 4 else x


class WithoutEffect(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * torch.rand_like(x)


class NearlyWithoutEffect(nn.Module):
    """Differs as a kernel does that adds in any order, and at large sizes by more."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() + (1e-9 if x.shape[0] < 4 else self.factor) * torch.rand_like(x)


@pytest.mark.parametrize(("factor", "found"), [(1e-9, NOT_TO_THE_BIT), (1.0, repeatability.DRAWS)])
def test_noise_does_not_hide_draws(factor: float, found: str) -> None:
    assert unsteady(NearlyWithoutEffect(factor))[0] == found


@pytest.mark.parametrize("kind", [Rare, AtLargeSizes])
def test_rare_draws_are_found(kind: type[nn.Module]) -> None:
    """One further call of the example alone would return the same in most runs."""
    for _ in range(5):
        assert unsteady(kind()) == (repeatability.DRAWS, ())


def test_draws_without_effect_are_a_note() -> None:
    assert unsteady(WithoutEffect()) == (
        "",
        (f"{repeatability.DRAWS}, but 200 more calls returned the same as before",),
    )


RECIPE = """
import torch
class Rare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 16) / 4)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        {state}
        return torch.nn.functional.dropout(x @ self.weight, 0.02, training=True)
class net:
    sizes = {{"batch": (1, 4)}}
    @staticmethod
    def load(weights):
        return Rare()
    @staticmethod
    def inputs(batch=2):
        return {{"x": torch.randn(batch, 8)}}
"""


@pytest.mark.parametrize("state", ["pass", "self.seen += 1"], ids=["without state", "with state"])
def test_no_precision_passes(run: Run, tmp_path: Path, state: str) -> None:
    """Random numbers counted as the error of eager in the precision, which widened its tolerance."""
    (tmp_path / "rare.py").write_text(RECIPE.format(state=state))
    manifest, _ = run(f"{tmp_path / 'rare'}:net", "trace,trace@bf16")
    assert manifest.golden is not None
    assert manifest.golden.unsteady == repeatability.DRAWS
    for variant in manifest.variants:
        assert variant.status == "failed", variant.name
        assert variant.cause == "unsteady", (variant.name, variant.reason)
