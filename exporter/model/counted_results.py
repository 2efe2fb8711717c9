"""Operators of libraries whose number of results depends on values, such as torchvision's nms.

By default, torch.library assumes at least two results, so torch.export records a range that AOTInductor checks in every
call: a detector then fails for an image with one object or none. `batched_nms` branches on the number of its boxes,
which depends on values if the model has left out unlikely ones.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

BATCHED = "batched_nms"


@contextlib.contextmanager
def any_number() -> Iterator[None]:
    """Let these operators take and have any number of boxes while a graph is captured or compiled."""
    from torch._library.fake_impl import FakeImplCtx

    def size(context: Any, *, min: int = 0, max: int | None = None) -> Any:
        return context.new_dynamic_size(min=min, max=max)

    boxes = sys.modules.get("torchvision.ops.boxes")
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(FakeImplCtx, "create_unbacked_symint", size))
        if boxes is not None:
            usual: Any = getattr(boxes, BATCHED)
            other = _batched(usual, boxes.nms)
            holders = [one for one in list(sys.modules.values()) if getattr(one, "__dict__", {}).get(BATCHED) is usual]
            for holder in holders:  # models import it by name
                stack.enter_context(mock.patch.object(holder, BATCHED, other))
        yield


def _batched(usual: Callable[..., Any], nms: Callable[..., Any]) -> Callable[..., Any]:
    """Return batched_nms without a branch on the number of boxes, if that is not known."""

    def batched(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float) -> Any:
        count: Any = boxes.shape[0]
        if not isinstance(count, torch.SymInt):
            return usual(boxes, scores, idxs, iou_threshold)
        end = torch.cat([boxes.flatten(), boxes.new_zeros(1)]).max()  # of coordinates, which are not negative
        return nms(boxes + (idxs.to(boxes) * (end + 1))[:, None], scores, iou_threshold)

    return batched
