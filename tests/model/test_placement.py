"""Running a model on the CPU for a while; tests/gpu/test_cpu_detour.py has the tests that move one."""

from __future__ import annotations

import torch
from torch import nn

from exporter.model import placement
from exporter.model.state.snapshot import Snapshot


def test_a_model_on_the_cpu_keeps_what_it_changes() -> None:
    net = nn.BatchNorm1d(4)
    with placement.on_cpu(net):
        net(torch.randn(3, 4))
    assert net.num_batches_tracked == 1


def test_everything_is_put_back() -> None:
    """Another dtype stands for another device."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    net[2].weight = net[0].weight  # shared
    snapshot, held = Snapshot(net), placement.Held(net)
    own = {name: one.data_ptr() for name, one in net.state_dict().items()}
    net.to(torch.float64)
    assert snapshot.changes()
    held.restore()
    assert {name: one.data_ptr() for name, one in net.state_dict().items()} == own
    assert net[2].weight is net[0].weight
    assert snapshot.changes() == {}


def test_what_a_module_moves_beside_its_tree_is_moved_back() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = [nn.Linear(2, 2)]  # as an interpreter keeps the TorchScript module that it runs

        def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
            self.moved = [*getattr(self, "moved", []), fn]
            return super()._apply(fn, recurse)

    net = nn.Sequential(Beside(), nn.Linear(2, 2))
    held = placement.Held(net)
    held.device = torch.device("cpu")
    held.restore()
    assert len(net[0].moved) == 1
