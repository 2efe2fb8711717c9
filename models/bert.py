"""BERT base (Devlin et al., 2018), uncased: 110 million parameters."""

from __future__ import annotations

import warnings

import torch
from transformers import BertConfig, BertModel

ID = "google-bert/bert-base-uncased"
sizes = {"batch": (1, 64), "sequence": (1, 512)}


def load(weights: str) -> torch.nn.Module:
    """Pretrained weights from the hub or its cache; random ones where there is neither."""
    if weights != "random":
        try:
            return BertModel.from_pretrained(ID, local_files_only=True)
        except OSError as missing:
            if weights == "pretrained":
                return BertModel.from_pretrained(ID)
            warnings.warn(
                f"random weights: {ID} is not in the hub's cache; --weights pretrained fetches it ({type(missing).__name__})",
                stacklevel=2,
            )
    model = BertModel(BertConfig())
    model.exporter_weights = "random"
    return model


def inputs(batch: int = 1, sequence: int = 14) -> dict[str, torch.Tensor]:
    """Token ids as a tokenizer would give them, the last of each row's tokens padding where there is room."""
    mask = torch.ones(batch, sequence, dtype=torch.long)
    if sequence > 2:
        mask[1::2, -1] = 0
    return {
        "input_ids": torch.randint(1000, 30000, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": torch.zeros(batch, sequence, dtype=torch.long),
    }
