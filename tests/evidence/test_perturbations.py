"""Changed values of the example inputs."""

from __future__ import annotations

import pytest
import torch

from exporter.core import tolerances
from exporter.core.size_range import Range
from exporter.evidence import make_golden, perturbations


def test_floats_change_and_indices_stay_in_their_range() -> None:
    ids, x, mask = torch.tensor([[3, 5, 4]]), torch.tensor([[-1.0, 2.0]]), torch.tensor([True, False])
    made = perturbations.changed((ids, x, mask))
    assert list(made) == ["zeros", "ones", "negative", "large", "tiny"]
    assert [t.tolist() for t in made["zeros"]] == [[[3, 3, 3]], [[0.0, 0.0]], [False, False]]
    assert [t.tolist() for t in made["ones"]] == [[[5, 5, 5]], [[1.0, 1.0]], [True, True]]
    assert [t.tolist() for t in made["negative"]] == [[[4, 5, 3]], [[-1.0, -2.0]], [False, True]]
    assert [t.tolist() for t in made["large"]] == [[[3, 5, 4]], [[-100.0, 200.0]], [True, False]]
    assert made["tiny"][0].tolist() == [[3, 5, 4]]
    assert [0 < abs(v) < torch.finfo(torch.float32).tiny for v in made["tiny"][1].flatten().tolist()] == [True, True]
    assert made["tiny"][1].sign().tolist() == [[-1.0, 1.0]]
    assert {t.dtype for data in made.values() for t in data} == {torch.int64, torch.float32, torch.bool}


def test_offsets_keep_their_order() -> None:
    offsets, mask, ids = torch.tensor([0, 2, 2, 5]), torch.tensor([False, True, True]), torch.tensor([0, 3, 1])
    padded = torch.tensor([0, 0, 1, 1])
    made = perturbations.changed((torch.randn(4), offsets, mask, ids, padded))["negative"]
    assert made[4].tolist() == [1, 1, 0, 0]
    assert made[1].tolist() == [0, 2, 2, 5]
    assert made[2].tolist() == [True, True, False]
    assert made[3].tolist() == [1, 3, 0]


def test_masks_with_one_value_are_padded() -> None:
    full, all_ones = torch.zeros(2, 5, dtype=torch.bool), torch.ones(2, 1, 4, dtype=torch.int64)
    zeros, one = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 1, dtype=torch.int64)
    made = perturbations.changed((full, all_ones, zeros, one, torch.tensor([0.5, -0.25])))
    assert list(made) == ["zeros", "ones", "negative", "large", "tiny", "padded"]
    assert made["padded"][0].tolist() == [[False, False, True, True, True], [False] * 5]
    assert made["padded"][1].tolist() == [[[1, 1, 0, 0]], [[1, 1, 1, 1]]]
    assert [torch.equal(*pair) for pair in zip(made["padded"][2:4], (zeros, one), strict=True)] == [True, True]
    assert full.sum() == 0
    assert (made["padded"][0].dtype, made["padded"][1].dtype) == (torch.bool, torch.int64)
    mixed = (torch.tensor([[True, False]]), torch.tensor(True), torch.tensor([0.5]))
    assert "padded" not in perturbations.changed(mixed)


def test_changes_without_effect_are_left_out() -> None:
    assert list(perturbations.changed((torch.zeros(2), torch.tensor(7)))) == ["ones"]
    assert perturbations.changed((torch.ones(2, dtype=torch.complex64),)) == {}
    assert perturbations.changed((torch.zeros(0, dtype=torch.int64),)) == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_perturbation_scales_with_the_rounding_of_the_dtype(dtype: torch.dtype) -> None:
    """With a perturbation beyond the tolerance, a float64 model would keep no changed values at all."""
    data = (torch.linspace(-1, 1, 100).to(dtype), torch.arange(3))
    once, again = perturbations.perturbed(data, 1), perturbations.perturbed(data, -1)
    assert perturbations.settled(once, again, tolerances.of_outputs({str(dtype).removeprefix("torch.")}))
    assert torch.equal(once[0], again[0]) == (dtype == torch.bfloat16)
    assert torch.equal(once[1], data[1])


class Model(torch.nn.Module):
    """Raises at negative, overflows at large, and breaks a tie otherwise."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if bool((x < -1e-3).all()):
            raise ValueError("negative")
        return x.argmax(), torch.exp(x * 10) + x


class Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sign()


def test_complex_outputs_are_settled_within_the_tolerance() -> None:
    tolerance, values = tolerances.of_outputs(()), torch.tensor([1 + 1j, 100 - 3j])
    assert perturbations.settled((values,), ((values * (1 + 1e-5)).to(torch.complex128),), tolerance)
    assert not perturbations.settled((values,), (values * (1 + 1e-3),), tolerance)
    assert not perturbations.settled((values,), (values.conj(),), tolerance)
    assert not perturbations.settled((values * float("nan"),), (values * float("nan"),), tolerance)


def test_the_golden_keeps_only_settled_values() -> None:
    def make(module: torch.nn.Module) -> tuple[str, ...]:
        plan = make_golden.Plan([({"batch": 2}, 0), ({"batch": 3}, 0)], {"batch": Range(1, 4)})
        found = make_golden.make(module, data, plan, tolerances.of_outputs(()), "cpu")
        return tuple(map(str, found[1].cases))

    def data(sizes: dict[str, int], seed: int) -> tuple[torch.Tensor]:
        return (torch.arange(sizes["batch"], dtype=torch.float32) + 0.5,)

    assert make(Steps()) == ("batch=2", "batch=3", "batch=2 ones", "batch=2 negative", "batch=2 large")
    assert make(Model()) == ("batch=2", "batch=3")
