"""What a model takes and gives once its inputs and outputs are flat."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], Tensors]  # one call
