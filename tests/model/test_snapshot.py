"""Snapshots and copies of the contents of a module."""

from __future__ import annotations

import pytest
import torch

from exporter.model.state import snapshot


class Holding(torch.nn.Module):
    """Tensors everywhere a call may change them, one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2))
        self.first = torch.nn.Linear(2, 2)
        self.tied = self.first
        self.past = [self.kept, torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept += self.first(x)
        self.past[1] += 1
        return self.kept + self.past[1].sum()


def test_nan_in_an_attribute_is_not_a_change() -> None:
    module = Holding().eval()
    module.fill = float("nan")
    held = snapshot.Snapshot(module)
    assert held.changes() == {}
    module.fill = 0.0
    assert list(map(snapshot.name, held.changes())) == ["fill"]


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_tensors_are_compared_and_restored(layout: torch.layout) -> None:
    module = Holding().eval()
    dense = torch.tensor([[0.0, 2.0], [3.0, float("nan")]])
    module.register_buffer("graph", dense.to_sparse(layout=layout))
    held = snapshot.Snapshot(module)
    assert held.changes() == {}
    module.graph.mul_(2)
    assert list(map(snapshot.name, held.changes())) == ["graph"]
    held.restore()
    assert held.changes() == {}
    torch.testing.assert_close(module.graph.to_dense(), dense, equal_nan=True)
    module.graph = (dense * 2).to_sparse(layout=layout)
    assert list(map(snapshot.name, held.changes())) == ["graph"]


def test_a_copy_shares_no_tensor() -> None:
    module = Holding().eval()
    copied = snapshot.copied(module, "meta")
    assert {value.device.type for _, value in snapshot.leaves(copied) if isinstance(value, torch.Tensor)} == {"meta"}
    assert {value.device.type for _, value in snapshot.leaves(module) if isinstance(value, torch.Tensor)} == {"cpu"}


def test_a_copy_computes_the_same_without_changing_the_module() -> None:
    module = Holding().eval()
    copied = snapshot.copied(module, "cpu")
    assert copied.past[0] is copied.kept
    assert copied.tied is copied.first
    x = torch.ones(2)
    with torch.no_grad():
        outputs = [copied(x).clone() for _ in range(3)]
        assert not module.past[1].any()
        assert not module.kept.any()
        torch.testing.assert_close(outputs, [module(x).clone() for _ in range(3)])


def test_tensors_computed_from_parameters_are_detached() -> None:
    with pytest.warns(FutureWarning):
        module = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Linear(3, 2)))
    weight = module[0].weight
    assert weight.grad_fn is not None
    snapshot.detach(module)
    assert torch.equal(module[0].weight, weight)
    assert not module[0].weight.requires_grad


def test_nothing_is_put_into_a_container_that_is_not_there() -> None:
    model = torch.nn.Module()
    model.cache = None  # type: ignore[assignment]
    for step in (("item", 0), ("item", "key"), ("vars", "value")):
        with pytest.raises(snapshot.MISSING):
            snapshot.put(model, (("vars", "cache"), step), torch.ones(1))
        with pytest.raises(snapshot.MISSING):
            snapshot.take(model, (("vars", "cache"), step))
    with pytest.raises(snapshot.MISSING):
        snapshot.remove(model, (("vars", "cache"), ("vars", "value")))
