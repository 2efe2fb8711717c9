"""BERT base (Devlin et al., 2018), uncased: 110 million parameters."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
import warnings

import torch
from huggingface_hub import constants
from transformers import BertConfig, BertModel

ID = "google-bert/bert-base-uncased"
sizes = {"batch": (1, 64), "sequence": (1, 512)}


def load(weights: str) -> torch.nn.Module:
    """Return the model with pretrained weights from the hub or its cache, or else with random weights.

    Raises OSError if `weights` is "pretrained" and the weights are not available.
    """
    if weights != "random":
        try:
            model = BertModel.from_pretrained(ID, local_files_only=weights == "auto" and not _online())
            commit = model.config._commit_hash
            model.exporter_origin = f"pkg:huggingface/{ID}" + (f"@{commit}" if commit else "")
            model.exporter_licence = "apache-2.0"
            return _labelled(model, "pretrained")
        except OSError:
            if weights == "pretrained":
                raise
            warnings.warn(
                f"random weights: {ID} is not cached and cannot be fetched; --weights pretrained makes this an error",
                stacklevel=2,
            )
    return _labelled(BertModel(BertConfig()), "random")


def _online() -> bool:
    """Return whether the hub answers. The hub's own client would try for twenty seconds."""
    if urllib.request.getproxies():
        return True
    try:
        socket.create_connection((urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


def _labelled(model: torch.nn.Module, weights: str) -> torch.nn.Module:
    model.exporter_weights = weights
    return model


def inputs(batch: int = 1, sequence: int = 14) -> dict[str, torch.Tensor]:
    """Return inputs like those of a tokenizer, each [batch, sequence]; every second row may end in padding."""
    mask = torch.ones(batch, sequence, dtype=torch.long)
    if sequence > 2:
        mask[1::2, -1] = 0
    return {
        "input_ids": torch.randint(1000, 30000, (batch, sequence)),
        "attention_mask": mask,
        "token_type_ids": torch.zeros(batch, sequence, dtype=torch.long),
    }
