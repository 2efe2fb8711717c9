"""Bounds that the command line and the library share."""

from __future__ import annotations

MAX_THREADS = 1024  # of one call; many more end the process
