"""Recipes for benchmarks/large.py: GPT-2 (Radford et al., 2019) in its four sizes, with random weights."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Small:
    """0.1 billion parameters."""

    sizes = {"batch": (1, 4), "sequence": (1, 64)}
    width, layers, heads = 768, 12, 12

    @classmethod
    def load(cls, weights: str) -> torch.nn.Module:
        """Return the model; its weights are always random."""
        config = GPT2Config(n_embd=cls.width, n_layer=cls.layers, n_head=cls.heads, use_cache=False)
        model = GPT2LMHeadModel(config)
        model.exporter_weights = "random"
        return model

    @staticmethod
    def inputs(batch: int = 1, sequence: int = 16) -> dict[str, torch.Tensor]:
        """Return token ids, [batch, sequence]."""
        return {"input_ids": torch.randint(0, 50257, (batch, sequence))}


class Medium(Small):
    """0.4 billion parameters."""

    width, layers, heads = 1024, 24, 16


class Large(Small):
    """0.8 billion parameters."""

    width, layers, heads = 1280, 36, 20


class XL(Small):
    """1.5 billion parameters."""

    width, layers, heads = 1600, 48, 25


RECIPES = {"0.1": Small, "0.4": Medium, "0.8": Large, "1.5": XL}
