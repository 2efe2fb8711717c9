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

from exporter.model import holders

BATCHED = "batched_nms"
FEW, FEW_CUDA = 4000, 100_000  # largest number of coordinates for which torchvision moves boxes apart


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
            stack.enter_context(holders.replaced(holders.of(usual, other)))  # models import it by name
        yield


def _batched(usual: Callable[..., Any], nms: Callable[..., Any]) -> Callable[..., Any]:
    """Return batched_nms without a branch on the number of boxes, if that is not known.

    torchvision moves the boxes of each class apart by the largest coordinate, which separates them unless some are
    negative. Of many boxes it looks at each class alone; here, the smallest coordinate becomes 0 then.
    """

    def batched(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, iou_threshold: float) -> Any:
        count: Any = boxes.shape[0]
        if not isinstance(count, torch.SymInt):
            return usual(boxes, scores, idxs, iou_threshold)
        limits = torch.finfo(boxes.dtype)
        last = torch.cat([boxes.flatten(), boxes.new_full((1,), limits.min)]).max()
        first = torch.cat([boxes.flatten(), boxes.new_full((1,), limits.max)]).min()
        few = FEW if boxes.device.type == "cpu" else FEW_CUDA
        many = torch.scalar_tensor(boxes.numel(), device=boxes.device) > few
        start = torch.where(many, first, torch.zeros_like(first))
        return nms(boxes - start + (idxs.to(boxes) * (last - start + 1))[:, None], scores, iou_threshold)

    return batched
