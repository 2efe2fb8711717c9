"""Models that keep state on a GPU: reset, streams, and no CUDA graph for artifacts that keep their state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipes import stateful
from support.commands import Run

import exporter
from exporter.core import environment


@pytest.mark.parametrize("state", ["carry", "inputs"])
def test_state_on_a_gpu(run: Run, tmp_path: Path, state: str) -> None:
    manifest, place = run("stateful:nested", "trace,compile", device="cuda", state=state, timeout=600.0)
    rows = {v.name: v for v in manifest.variants}
    assert {name: row.reason for name, row in rows.items() if row.status == "failed"} == {}
    for row in rows.values():
        providers = {session.session: session.provider for session in row.sessions}
        if environment.find_runner():
            graph = "no CUDA graph: the artifact keeps its state" if state == "carry" else "CUDA graph"
            assert providers["native"] == graph
        assert row.artifact is not None
        stream = exporter.open_artifact(place / row.artifact.path).stream()
        for _ in range(2):
            stream.reset()
            own = stateful.nested.load("random").eval().cuda()
            for seed in range(5):
                torch.manual_seed(seed)
                x = stateful.nested.inputs(samples=33)
                with torch.no_grad():
                    torch.testing.assert_close(stream(x)["output"], own(x.cuda()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ring", "cache"])
def test_an_index_in_the_state_does_not_break_later_calls(run: Run, name: str) -> None:
    """The search for state tries out-of-range indices, after which every later GPU call in the process would fail."""
    manifest, _ = run(f"stateful:{name}", "trace,export", device="cuda", timeout=600.0)
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    assert manifest.contract is not None
    assert manifest.contract.state is not None
