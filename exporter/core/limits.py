"""Bounds that several rooms share."""

from __future__ import annotations

SEEDS = -(1 << 63), (1 << 64) - 1  # what torch.manual_seed accepts
LARGEST_SIZE = (1 << 63) - 1
MAX_THREADS = 1024  # of one call; many more end the process
LARGEST = 1e100  # so that sums, ratios and other units of what is recorded are finite too
