"""These tests need an NVIDIA GPU; elsewhere none of them is collected."""

from __future__ import annotations

from exporter.core import environment

collect_ignore_glob = [] if environment.gpus() else ["test_*.py"]
