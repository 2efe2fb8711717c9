"""Mixtures of experts of transformers, in a form that every target can take.

transformers computes chosen experts by a grouped product, for which compilers get an operator of Python's that no
artifact can call. While a model is exported, and while it runs in float64, which that product does not know, each
expert is computed for every token instead and what was not chosen is left out. Eager itself stays as it is, so that the
golden tells whether the two agree.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

NAME = "exporter"  # of this form, among those of transformers
LIBRARY = "transformers.integrations.moe"


@contextlib.contextmanager
def dense(model: torch.nn.Module) -> Iterator[None]:
    """While this lasts, every module of experts of transformers in the model computes all of them."""
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
    """Each configuration once that tells modules of experts how to compute; they ask it at every call."""
    if LIBRARY not in sys.modules:
        return []
    modules = [module for module in model.modules() if hasattr(module, "is_transposed") and hasattr(module, "has_gate")]
    found = {id(module.config): module.config for module in modules if not getattr(module, "_is_expert_parallel", True)}
    return [config for config in found.values() if hasattr(config, "_experts_implementation_internal")]


def _forward(
    experts: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """What transformers' own forms give: (tokens, hidden), from (tokens, hidden) and (tokens, k) twice."""
    tokens = hidden_states.expand(experts.num_experts, *hidden_states.shape)
    projected = _linear(experts, tokens, "gate_up_proj" if experts.has_gate else "up_proj")
    act = experts._apply_gate if experts.has_gate else experts.act_fn
    given = _linear(experts, _by_token(act, projected), "down_proj")
    if experts.has_post_expert_norm:
        given = _by_token(experts.post_expert_norm, given)
    numbers = torch.arange(experts.num_experts, device=top_k_index.device)
    chosen = top_k_index.unsqueeze(0) == numbers.view(-1, 1, 1)  # (experts, tokens, k)
    share = (top_k_weights.unsqueeze(0) * chosen).sum(2).to(given.dtype).unsqueeze(2)
    # What was not chosen may be infinite, of which no part is zero.
    weighted = torch.where(chosen.any(2).unsqueeze(2), given * share, torch.zeros_like(given))
    return torch.sum(weighted, 0).to(hidden_states.dtype)


def _linear(experts: Any, inputs: torch.Tensor, name: str) -> torch.Tensor:
    """One projection of every expert: (experts, tokens, in) to (experts, tokens, out)."""
    weight = getattr(experts, name)
    outputs = torch.bmm(inputs.to(weight.dtype), weight if experts.is_transposed else weight.transpose(1, 2))
    return outputs + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else outputs


def _by_token(function: Any, values: torch.Tensor) -> torch.Tensor:
    """A function of (tokens, features), as transformers calls it, for all experts at once."""
    made: torch.Tensor = function(values.flatten(0, 1)).unflatten(0, values.shape[:2])
    return made
