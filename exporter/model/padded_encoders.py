"""nn.TransformerEncoder with a padding mask, as it computes in eager.

If the padding of every row is at its end, eager packs the rows into a nested tensor, and the output is 0 where they are
padded. torch.export never takes this path, and a trace takes that of its example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def zeroed() -> Iterator[None]:
    """Compute what eager does with tensor operations, for each encoder that packs its rows, in a capture or a trace."""
    patched: Any = nn.TransformerEncoder
    usual = patched.forward

    def forward(
        self: nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Any:
        if src_key_padding_mask is None or mask is not None or not _packs(self, src):
            return usual(self, src, mask, src_key_padding_mask, is_causal)
        padding = src_key_padding_mask
        if padding.dtype == torch.bool:
            padding = torch.zeros_like(padding, dtype=src.dtype).masked_fill(padding, float("-inf"))
        kept = padding == 0
        lengths = kept.sum(1, keepdim=True)
        packed = (kept == (torch.arange(kept.shape[1], device=kept.device) < lengths)).all()
        dropped = packed & ~kept
        masked = padding.masked_fill(dropped, float("-inf"))
        found = src.masked_fill(dropped[:, :, None], 0)  # where NaN would reach other positions
        for layer in self.layers:
            found = layer(found, src_mask=None, src_key_padding_mask=masked, is_causal=is_causal is True)
        found = found.masked_fill(dropped[:, :, None], 0)
        return found if self.norm is None else self.norm(found)

    patched.forward = forward
    try:
        yield
    finally:
        patched.forward = usual


def _packs(encoder: nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Return whether eager packs padded rows, as far as that does not depend on values."""
    if not getattr(encoder, "use_nested_tensor", False) or not getattr(encoder, "mask_check", True):
        return False
    layer: Any = encoder.layers[0]
    attention = layer.self_attn
    weights = [attention.in_proj_weight, attention.in_proj_bias, *attention.out_proj.parameters()]
    for part in (layer.norm1, layer.norm2, layer.linear1, layer.linear2):
        weights += part.parameters()
    records = torch.is_grad_enabled() and any(one.requires_grad for one in (src, *weights))
    usual = torch.backends.mha.get_fastpath_enabled() and not torch.is_autocast_enabled()
    return usual and not records and not layer.training and src.dim() == 3
