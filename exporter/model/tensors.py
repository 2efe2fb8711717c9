"""Types of a flat model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], Tensors]  # one call
