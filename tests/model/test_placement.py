"""Running a model on the CPU for a while; tests/gpu/test_cpu_detour.py has the tests that move one."""

from __future__ import annotations

import torch
from torch import nn

from exporter.model import placement


def test_a_model_on_the_cpu_keeps_what_it_changes() -> None:
    net = nn.BatchNorm1d(4)
    with placement.on_cpu(net):
        net(torch.randn(3, 4))
    assert net.num_batches_tracked == 1
