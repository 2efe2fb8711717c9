"""These tests need an NVIDIA GPU; without one, none is collected."""

from __future__ import annotations

from exporter.core import environment

collect_ignore_glob = [] if environment.gpus() else ["test_*.py"]
