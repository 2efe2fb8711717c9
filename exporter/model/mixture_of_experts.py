"""Mixtures of experts of transformers, in a form that every target supports.

transformers computes the chosen experts by a grouped product, which compiles to a Python operator that no artifact can
call and which does not support float64. During export, and when a model runs in float64, every expert is computed for
every token instead, and the results that were not chosen are dropped. Eager itself is unchanged, so the golden shows
whether the two agree.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

NAME = "exporter"  # name of this implementation in transformers' registry
LIBRARY = "transformers.integrations.moe"


@contextlib.contextmanager
def dense(model: torch.nn.Module) -> Iterator[None]:
    """Make every transformers module of experts in the model compute all experts within the context."""
    configs = _configs(model)
    if configs:
        sys.modules[LIBRARY].ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
    usual = [config._experts_implementation_internal for config in configs]
    try:
        for config in configs:
            config._experts_implementation_internal = NAME
        yield
    finally:
        for config, name in zip(configs, usual, strict=True):
            config._experts_implementation_internal = name


def _configs(model: torch.nn.Module) -> list[Any]:
    """Return each configuration that selects the implementation of experts; modules read it on every call."""
    if LIBRARY not in sys.modules:
        return []
    modules = [module for module in model.modules() if hasattr(module, "is_transposed") and hasattr(module, "has_gate")]
    found = {id(module.config): module.config for module in modules if not getattr(module, "_is_expert_parallel", True)}
    return [config for config in found.values() if hasattr(config, "_experts_implementation_internal")]


def _forward(
    experts: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute what transformers' implementations do: (tokens, hidden) from (tokens, hidden) and twice (tokens, k)."""
    tokens = hidden_states.expand(experts.num_experts, *hidden_states.shape)
    projected = _linear(experts, tokens, "gate_up_proj" if experts.has_gate else "up_proj")
    act = experts._apply_gate if experts.has_gate else experts.act_fn
    given = _linear(experts, _by_token(act, projected), "down_proj")
    if experts.has_post_expert_norm:
        given = _by_token(experts.post_expert_norm, given)
    numbers = torch.arange(experts.num_experts, device=top_k_index.device)
    chosen = top_k_index.unsqueeze(0) == numbers.view(-1, 1, 1)  # (experts, tokens, k)
    share = (top_k_weights.unsqueeze(0) * chosen).sum(2).to(given.dtype).unsqueeze(2)
    # Use where, not a product: results that were not chosen may be infinite, and infinity times zero is NaN.
    weighted = torch.where(chosen.any(2).unsqueeze(2), given * share, torch.zeros_like(given))
    return torch.sum(weighted, 0).to(hidden_states.dtype)


def _linear(experts: Any, inputs: torch.Tensor, name: str) -> torch.Tensor:
    """Apply one projection of every expert: (experts, tokens, in) to (experts, tokens, out)."""
    weight = getattr(experts, name)
    outputs = torch.bmm(inputs.to(weight.dtype), weight if experts.is_transposed else weight.transpose(1, 2))
    return outputs + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else outputs


def _by_token(function: Any, values: torch.Tensor) -> torch.Tensor:
    """Apply a function of (tokens, features), the form transformers uses, to all experts at once."""
    made: torch.Tensor = function(values.flatten(0, 1)).unflatten(0, values.shape[:2])
    return made
