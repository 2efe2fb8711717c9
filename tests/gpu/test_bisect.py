"""Layers in float32, operators left to torch, and the search for them, on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import bisecting
from support.commands import Run

from exporter.runs import bisect_variant


def test_layers_in_float32_are_found_and_kept(run: Run, tmp_path: Path) -> None:
    names = "trace@fp16,compile@fp16,trace@fp16+fp32:pair,compile@fp16+fp32:pair,compile:default@fp16+fp32:pair"
    manifest, place = run("blocks:loud", names, device="cuda")
    status = {row.name: row.status for row in manifest.variants}
    kept = {name: "passed" for name in names.split(",") if "+" in name}
    assert {name: status[name] for name in kept} == kept, [row.reason for row in manifest.variants]
    assert status["trace@fp16"] == "failed"
    sessions = {row.name: {one.session: one.status for one in row.sessions} for row in manifest.variants}
    assert sessions["compile@fp16+fp32:pair"].get("native", "passed") == "passed"
    found = bisect_variant.run(place, "trace@fp16", tmp_path / "out", print, 600, fix=True)
    assert found.fix is not None
    assert found.fix.keep_float == ("pair",)


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor's own
def test_an_operator_that_inductor_gets_wrong_is_left_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    def wrong(x: Any) -> Any:
        return lowering.ops.add(lowering.ops.erf(x), lowering.ops.constant(1e-3, torch.float32))

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.erf.default, lowering.make_pointwise(wrong))
    found = bisecting.inquire(tmp_path, "compile", device="cuda", fix=True)
    assert found.verdict == "compiler"
    assert [node.operator for node in found.nodes] == ["aten.gelu.default"]
    assert found.fix is not None
    assert found.fix.options == "--fallback aten.gelu.default"
