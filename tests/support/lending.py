"""Lending one zygote to several runs, because starting one imports torch, which takes seconds."""

from __future__ import annotations

import pytest

from exporter.workers.children import Zygote

# The modules that start a zygote.
FORKING = (
    *("runs.pipeline", "runs.check_bundle", "runs.profile_bundle", "runs.compare_bundles"),
    *("workers.children", "workers.bisect", "workers.explain", "workers.repair.search"),
    *("deploy.cpp", "deploy.docker", "deploy.triton"),
)


def lend(zygote: Zygote, patch: pytest.MonkeyPatch) -> None:
    """Make runs and commands in this process fork from a zygote."""
    for module in FORKING:
        patch.setattr(f"exporter.{module}.Zygote", lambda *_: zygote.lend())
