"""Recipes for benchmarks/growth.py: a BERT-like encoder of any size, such as `w512_l4_b1_s16`, with random weights."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from transformers import BertConfig, BertModel

VOCABULARY = 1000  # small, so that nearly all parameters are in the layers


class Encoder(NamedTuple):
    """The recipe of one size."""

    width: int
    layers: int
    batch: int
    sequence: int

    def load(self, weights: str) -> torch.nn.Module:
        """Return the model; its weights are always random."""
        model = BertModel(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.width // 64,
                intermediate_size=4 * self.width,
            ),
            add_pooling_layer=False,
        )
        model.exporter_weights = "random"  # type: ignore[assignment]
        return model

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return token ids and a mask without padding, each [batch, sequence]."""
        ids = torch.randint(0, VOCABULARY, (self.batch, self.sequence))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def __getattr__(name: str) -> Encoder:
    """Return the recipe that the name describes."""
    found = re.fullmatch(r"w(\d+)_l(\d+)_b(\d+)_s(\d+)", name)
    if found is None:
        raise AttributeError(name)
    return Encoder(*map(int, found.groups()))
