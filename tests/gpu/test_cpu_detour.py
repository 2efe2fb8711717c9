"""A model that ran on the CPU for a while is on the GPU again, and nothing in it counts as changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exporter.evidence import eager
from exporter.model import placement
from exporter.model.state.snapshot import Snapshot


def _net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net[2].weight = net[0].weight  # shared
    return net.eval().cuda()


def test_nothing_is_left_of_a_time_on_the_cpu() -> None:
    net = _net()
    held, own = Snapshot(net), {name: one.data_ptr() for name, one in net.state_dict().items()}
    with placement.on_cpu(net):
        assert {one.device.type for one in net.state_dict().values()} == {"cpu"}
        assert net[2].weight is net[0].weight
    assert {name: one.data_ptr() for name, one in net.state_dict().items()} == own
    assert net[2].weight is net[0].weight
    assert held.changes() == {}


@pytest.mark.parametrize("fails", [False, True])
def test_references_leave_no_change(fails: bool) -> None:
    """Before, every weight of a model on a GPU counted as changed afterwards, which some models were refused for."""
    net, x = _net(), torch.randn(3, 4)
    held, outputs = Snapshot(net), eager.run(net, (x,), "cuda")
    if fails:
        net.register_forward_pre_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    _, kind = eager.references(net, [(x,)], [outputs])
    assert kind == ("eager" if fails else "float64")
    assert held.changes() == {}
