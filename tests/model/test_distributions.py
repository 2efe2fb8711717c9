from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional
from torch.testing import assert_close

from exporter.core.contract_records import Contract, Range, TensorSpec
from exporter.model import distributions
from exporter.model.capture import export_program


class Policy(nn.Module):
    """The log probability of an action, and the entropy, as reinforcement learning computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, action = inputs
        mean, width = self.layer(state).chunk(2, -1)
        normal = Normal(mean, functional.softplus(width))
        return normal.log_prob(action).sum(-1), Categorical(logits=mean).entropy()


def test_a_model_with_distributions_is_captured_with_dynamic_sizes() -> None:
    inputs = TensorSpec("state", "float32", ("batch", 6)), TensorSpec("action", "float32", ("batch", 2))
    outputs = TensorSpec("log_prob", "float32", ("batch",)), TensorSpec("entropy", "float32", ("batch",))
    model, example = Policy().eval(), (torch.randn(2, 6), torch.randn(2, 2))
    program = export_program(model, example, Contract("policy", inputs, outputs, {"batch": Range(1, 8)}))
    other = torch.randn(5, 6), torch.randn(5, 2)
    assert_close(program.module()(*other), model(*other))


def test_the_checks_are_left_out_only_within_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile leaves them out from then on
    with distributions.unchecked():
        Normal(torch.zeros(1), -torch.ones(1))
    assert Distribution._validate_args
    with pytest.raises(ValueError, match="scale"):
        Normal(torch.zeros(1), -torch.ones(1))
