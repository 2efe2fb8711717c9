"""Attention masks of nn.TransformerEncoder and nn.TransformerDecoder.

torch compares a mask with a causal one, and tells its kernels if they are equal. That is a branch on values, which no
graph can hold, and only a hint: the mask itself says the same.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock


def uncompared() -> contextlib.AbstractContextManager[Any]:
    """Take a mask as it is, unless the model itself says that it is causal."""
    from torch.nn.modules import transformer

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return mock.patch.object(transformer, "_detect_is_causal_mask", detect)
