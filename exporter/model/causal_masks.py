"""Attention masks of nn.TransformerEncoder and nn.TransformerDecoder.

torch compares a mask with a causal one, and tells its kernels if they are equal. That is a branch on values, which no
graph can hold, and only a hint: the mask itself says the same. Without the hint, kernels for GPUs read the mask, which
is float32 even if the model is not; they return NaN then, without an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.modules import transformer

from exporter.model import holders

ATTENTION = "scaled_dot_product_attention"
OPERANDS = ("key", "value", "attn_mask", "dropout_p", "is_causal")


@contextlib.contextmanager
def uncompared() -> Iterator[None]:
    """Take a mask as it is, unless the model itself says that it is causal; on a GPU, cast it to the queries' dtype.

    `is_causal` may depend on a size, as `length > 1` does.
    """
    attention = getattr(functional, ATTENTION)

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    def attend(query: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        given = dict(**dict(zip(OPERANDS, args, strict=False)), **named)
        mask = given.get("attn_mask")
        if query.is_cuda and mask is not None and mask.is_floating_point():
            given["attn_mask"] = mask.to(query.dtype)
        if "is_causal" in given:
            given["is_causal"] = bool(given["is_causal"])
        result: torch.Tensor = attention(query, **given)
        return result

    with (
        mock.patch.object(transformer, "_detect_is_causal_mask", detect),
        holders.replaced(holders.of(attention, attend)),
    ):
        yield
