"""Operators from outside torch: found in the programs that call them, registered where these run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from support.commands import NATIVE, Cli, Run, recipe_path
from support.operators import BUILT, needs_the_library

import exporter
from exporter import targets as routes
from exporter.core import environment
from exporter.core.errors import ArtifactError, UsageError
from exporter.core.records import Manifest
from exporter.model import custom_ops


class Branches(torch.nn.Module):
    """Calls torchvision only in a branch inside a loop."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for _ in range(int(scores[0])):
            if bool(scores.sum() > 3):
                scores = scores[torchvision.ops.nms(boxes, scores, 0.5)]
        return scores


class Choice(torch.nn.Module):
    """Calls torchvision only in one branch of torch.cond."""

    def forward(self, image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        def align(image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            aligned: torch.Tensor = torchvision.ops.roi_align(image, boxes, 1)
            return aligned

        def average(image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            return image.mean((2, 3), keepdim=True) + boxes[0, 0]

        chosen: torch.Tensor = torch.cond(boxes.sum() > 3, align, average, (image, boxes))
        return chosen


def test_operators_in_torchscript() -> None:
    assert custom_ops.of_script(torch.jit.script(Branches())) == ("torchvision",)
    assert custom_ops.of_script(torch.jit.script(torch.nn.Linear(2, 3))) == ()


def test_operators_in_an_exported_program() -> None:
    example = (torch.rand(1, 3, 8, 8), torch.tensor([[0.0, 1.0, 1.0, 4.0, 4.0]]))
    with torch.no_grad():
        assert custom_ops.of_exported(torch.export.export(Choice(), example, strict=False)) == ("torchvision",)
    linear = torch.export.export(torch.nn.Linear(2, 3), (torch.rand(1, 2),))
    assert custom_ops.of_exported(linear) == ()


def test_torchvisions_library_is_found_and_self_sufficient() -> None:
    code = (
        "import sys, torch; from exporter.model import custom_ops as operators\n"
        "operators.require(['torchvision', 'aten']); operators.require(['torchvision'])\n"
        "print(torch.ops.torchvision.nms(torch.tensor([[0., 0, 2, 2]]), torch.ones(1), 0.5).tolist())\n"
        "print('torchvision' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["[0]", "False"]


def test_operators_of_an_unknown_library() -> None:
    assert custom_ops.library("mine") is None
    with pytest.raises(ArtifactError, match="operators of mine, which are not registered") as caught:
        custom_ops.require(["mine"])
    assert "--ops-lib" in caught.value.remedy


def test_a_file_that_is_not_a_library(tmp_path: Path) -> None:
    file = tmp_path / "text.so"
    file.write_text("text")
    with pytest.raises(UsageError, match=r"text\.so cannot be loaded as a library of operators"):
        custom_ops.load(file)


def passed(manifest: Manifest, namespace: str) -> None:
    """Assert that every row passed, in C++ too if possible, and names the library that it needs."""
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    for variant in manifest.variants:
        kinds = ["python", "native"] if NATIVE and routes.get(variant.target).native else ["python"]
        assert [s.session for s in variant.sessions] == kinds
        assert variant.contract is not None
        assert variant.contract.ops == (namespace,)


@pytest.mark.parametrize("recipe", ["operators:aligned", "imports_when_called:aligned"])
def test_operators_of_torchvision(run: Run, recipe: str) -> None:
    manifest, place = run(recipe, "trace,script,export")
    passed(manifest, "torchvision")
    code = (
        "import sys, torch, exporter\n"
        f"artifact = exporter.open_artifact({str(place / 'trace.pt')!r})\n"
        "print(len(artifact(torch.rand(1, 3, 8, 8), torch.zeros(4, 5))['output']), 'torchvision' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["4", "False"], done.stderr


@needs_the_library
def test_operators_of_a_user_library(run: Run, cli: Cli) -> None:
    manifest, place = run("operators:affine", "trace,compile", ops_libs=(str(BUILT),))
    passed(manifest, "exporter_test")
    assert all(f"--ops-lib {BUILT}" in v.reproduce for v in manifest.variants)

    done = cli("check", place, "--ops-lib", BUILT, "--json", "-q")
    assert done.code == 0, done.out
    without = json.loads(cli("check", place, "--json", "-q").out)
    for variant in without["variants"]:
        assert {s["status"] for s in variant["sessions"]} == {"failed"}
        for session in variant["sessions"]:
            assert "operators of exporter_test, which are not registered" in session["reason"]
            assert "--ops-lib" in session["reason"] + session["remedy"]
    with pytest.raises(ArtifactError, match="operators of exporter_test"):
        exporter.open_artifact(place / "trace.pt")


@needs_the_library
def test_the_command_line_accepts_a_library(cli: Cli, tmp_path: Path) -> None:
    words = ("export", recipe_path("operators:affine"), "--targets", "trace", "--no-bench", "--device", "cpu", "-q")
    assert cli(*words, "--ops-lib", BUILT, "--out", tmp_path / "a").code == 0
    assert cli(*words, "--ops-lib", tmp_path / "missing.so", "--out", tmp_path / "b").code == 2
    broken = tmp_path / "broken.so"
    broken.write_text("text")
    done = cli(*words, "--ops-lib", broken, "--out", tmp_path / "c")
    assert (done.code, "broken.so cannot be loaded" in done.err) == (2, True)


@pytest.mark.skipif(environment.find_runner() is None, reason="exporter-run is not built (make cpp)")
def test_exporter_run_names_the_missing_library(run: Run) -> None:
    _, place = run("operators:aligned", "trace")
    command = [str(environment.find_runner()), "verify", str(place / "trace.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    file = custom_ops.library("torchvision")
    assert f"operators of torchvision, which are not registered here: give --ops-lib {file}" in done.stderr
