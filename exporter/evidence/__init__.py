"""Goldens, parity and timing statistics of artifacts. Nothing here knows a target, a process or a bundle."""
