"""Models for which bare calls are known to go wrong, each with its recipe."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Of:
    """Base of recipes: the model is `model`, and the batch is dynamic."""

    model: Any
    sizes: Any = {"batch": (1, 6)}

    @classmethod
    def load(cls, weights: str) -> nn.Module:
        torch.manual_seed(0)
        made: nn.Module = cls.model()
        return made

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, Any]:
        return {"x": torch.randn(batch, 4)}


class Masked(nn.Module):
    """Returns a result even without any input."""

    def forward(self, x: torch.Tensor | None = None, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = torch.zeros(2, 4) if x is None else x
        return x + 1 if mask is None else x * mask


class keywords(_Of):
    model = Masked

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, Any]:
        return {"x": torch.randn(batch, 4), "mask": torch.rand(batch, 4)}


class Named(nn.Module):
    """Returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self.linear(x), "hidden": torch.relu(x)}


class named(_Of):
    model = Named


class ModelOutputs(Named):
    """Returns a ModelOutput, like models of transformers."""

    def forward(self, x: torch.Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=self.linear(x), hidden_states=(x, torch.relu(x)))


class model_outputs(_Of):
    model = ModelOutputs


class Steps(nn.Module):
    """Runs an LSTM cell along the sequence; torch.jit.trace does not warn about it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 3)
        c = h
        for i in range(x.shape[1]):
            h, c = self.cell(x[:, i], (h, c))
        return h


class steps(_Of):
    model = Steps
    sizes = {"batch": (1, 4), "length": (1, 8)}

    @staticmethod
    def inputs(batch: int = 2, length: int = 5) -> dict[str, Any]:
        return {"x": torch.randn(batch, length, 3)}


class bert(_Of):
    sizes = {"batch": (1, 4), "sequence": (1, 12)}

    @staticmethod
    def model() -> nn.Module:
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=32,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
        )
        return BertModel(config).eval()

    @staticmethod
    def inputs(batch: int = 1, sequence: int = 7) -> dict[str, Any]:
        return {"input_ids": torch.randint(0, 32, (batch, sequence))}


class gpt2(_Of):
    """A causal language model that returns its cache."""

    sizes = {"batch": (1, 4), "sequence": (1, 12)}

    @staticmethod
    def model() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=2, n_positions=16, **ends)
        return GPT2LMHeadModel(config).eval()

    @staticmethod
    def inputs(batch: int = 2, sequence: int = 5) -> dict[str, Any]:
        return {"input_ids": torch.randint(0, 32, (batch, sequence)), "use_cache": True}


class one(_Of):
    """Its example has a batch of 1."""

    model = Named

    @staticmethod
    def inputs(batch: int = 1) -> dict[str, Any]:
        return {"x": torch.randn(batch, 4)}


class Sums(nn.Module):
    """Operators that AOTInductor fuses into its own kernels, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.relu(x * 2.0 + 1.0)
        return {"hidden": hidden, "sum": hidden.sum(), "logits": self.linear(hidden)}


class sums(_Of):
    model = Sums
    sizes = {"batch": (1, 512)}

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, Any]:
        return {"x": torch.randn(batch, 64)}
