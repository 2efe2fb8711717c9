"""`exporter repair`: models that torch.export refuses are repaired and proven; what cannot be proven is not shown."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import RECIPES, Cli, recipe_path

from exporter import targets
from exporter.core.errors import ExportError, UsageError
from exporter.model import recipes
from exporter.workers.children import Zygote
from exporter.workers.messages import Job
from exporter.workers.repair import search
from exporter.workers.repair.records import Repair
from exporter.workers.repair.search import Found

REPAIRED = {
    "gate": "torch.where",
    "early": "torch.where(returns_early",
    "ternary": "torch.where",
    "levels": "torch.logical_and",
    "normalised": "torch.where",
    "trimmed": "lengths.max().item()",
    "verbose": "not torch.compiler.is_compiling()",
    "checked": "torch._assert_async",
    "cached": "-@functools",
    "keyed": "masks @ x",
    "overwritten": "x = x.clone()",
    "tuples": "torch.cond",
    "detour": "torch.tanh",
    "rows": "n.item()",
    "rooted": "torch.sqrt",
    "clipped": "torch.where",
    "shrinking": "torch.cond",
}
Act = Callable[[str], Found]


@pytest.fixture
def lent(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the shared zygote."""
    monkeypatch.setattr("exporter.workers.repair.search.Zygote", lambda *_: zygote.lend())


@pytest.fixture
def repair(lent: None, tmp_path: Path) -> Act:
    """A function that searches for a repair: `repair("path/to/file.py:net")`."""

    def act(model: str, dynamic: str = "all") -> Found:
        source = recipes.find(model)
        (tmp_path / "work").mkdir(exist_ok=True)
        job = Job(source.label, source, tmp_path / "work", targets.Options(threads=1), dynamic=dynamic)
        return search.run(job, tmp_path / "work" / "log", lambda step: None, 300.0)

    return act


def copied(name: str, folder: Path) -> str:
    """Copy a recipe's file to a folder, and return the model's name there."""
    stem, _, attribute = name.partition(":")
    return f"{shutil.copy(RECIPES / f'{stem}.py', folder / 'net.py')}:{attribute}"


@pytest.mark.parametrize("name", REPAIRED)
def test_models_are_repaired_and_accepted(repair: Act, tmp_path: Path, name: str) -> None:
    model = copied(f"repairable:{name}", tmp_path)
    found = repair(model)
    assert found.report.verdict == "repaired", found.report.tried
    (patch,) = found.report.patches
    assert REPAIRED[name] in patch.diff
    assert found.report.proof is not None
    assert found.report.proof.cases > 30
    assert all(one.true and one.false for one in found.report.proof.outcomes if "in self.masks" not in one.test)
    found.write()
    dynamic = found.report.options[0].partition(" ")[2] if found.report.options else "all"
    assert repair(model, dynamic).report.verdict == "accepted"


UNPROVEN = {
    "one_sided": "no inputs were found for which `x.square().sum() < 0` is true",
    "promoting": "the contract differs",
    "raising": "the patched model differs from the original",
    "writing": "the patched model differs from the original",
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_what_is_not_proven_is_not_shown(repair: Act, name: str) -> None:
    found = repair(recipe_path(f"unrepairable:{name}"))
    refused(found.report)
    assert any(f"not proven: {UNPROVEN[name]}" in one.reason for one in found.report.tried), found.report.tried
    assert found.files == {}


def refused(report: Repair) -> None:
    assert (report.verdict, report.patches, report.steps, report.proof) == ("refused", (), (), None)
    assert report.cause


@pytest.mark.parametrize("name", ["halving", "drawing"])
def test_models_without_a_repair(repair: Act, name: str) -> None:
    refused(repair(recipe_path(f"unrepairable:{name}")).report)


@pytest.mark.parametrize(
    ("model", "option"), [("explained:narrow", "--size batch=1..4"), ("defects:loop", "--dynamic none")]
)
def test_sizes_that_are_narrowed_need_an_option(repair: Act, model: str, option: str) -> None:
    report = repair(recipe_path(model)).report
    assert (report.verdict, report.options, report.patches) == ("repaired", (option,), ())
    assert report.proof is not None


def test_a_model_that_needs_no_repair(repair: Act) -> None:
    report = repair(recipe_path("tiny:mlp")).report
    assert (report.verdict, report.cause, report.patches) == ("accepted", "", ())


def test_a_program_that_cannot_be_saved(repair: Act) -> None:
    report = repair(recipe_path("refused:digits")).report
    refused(report)
    assert report.cause.startswith("This target cannot round a number computed in the call to digits")
    assert "torch.export.save" in report.cause


def test_a_model_that_does_not_run(repair: Act) -> None:
    with pytest.raises(ExportError, match="forward does not work"):
        repair(recipe_path("broken:forward_raises"))


def test_an_input_that_is_no_longer_changed_is_reported(repair: Act) -> None:
    proof = repair(recipe_path("repairable:overwritten")).report.proof
    assert proof is not None
    assert proof.inputs_kept


def test_checks_hold_in_the_program_too(repair: Act) -> None:
    proof = repair(recipe_path("repairable:checked")).report.proof
    assert proof is not None
    assert proof.refused > 0
    assert proof.unchecked == 0


def test_a_file_that_has_changed_is_not_written(repair: Act, tmp_path: Path) -> None:
    model = copied("repairable:ternary", tmp_path)
    found = repair(model)
    file = tmp_path / "net.py"
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(UsageError, match="has changed"):
        found.write()
    assert file.read_text().endswith("# edited\n")


def test_the_printed_patch_applies(cli: Cli, lent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied("repairable:gate", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = Path("net.py").read_bytes()
    done = cli("repair", "net.py:gate", "--device", "cpu", "--size", "batch=4")
    assert done.code == 0, done.err
    assert "gate on cpu, batch 4" in done.out
    assert "x.mean() > 0 was true in" in done.out
    assert "nothing was written: --write applies this patch" in done.out
    assert "compare with the original model …" in done.err
    assert Path("net.py").read_bytes() == before
    subprocess.run(["git", "apply", "-p0"], input=done.out, text=True, check=True)
    applied = Path("net.py").read_bytes()
    Path("net.py").write_bytes(before)
    done = cli("repair", "net.py:gate", "--device", "cpu", "--write", "-q")
    assert (done.code, done.err) == (0, "")
    assert "written to" in done.out
    assert Path("net.py").read_bytes() == applied != before


def test_the_command_in_json(cli: Cli, lent: None) -> None:
    done = cli("repair", recipe_path("repairable:ternary"), "--device", "cpu", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["schema"], report["verdict"]) == (1, "repaired")
    assert report["patches"][0]["file"].endswith("repairable.py")
    assert report["proof"]["outcomes"][0]["test"] == "bool(x.sum() > 0)"


def test_the_command_without_a_repair(cli: Cli, lent: None) -> None:
    done = cli("repair", recipe_path("unrepairable:halving"), "--device", "cpu", "-q")
    assert done.code == 1
    assert "no change was proven, so none is shown" in done.out
    assert "ship script, which supports loops" in done.out


def test_the_command_for_a_model_that_is_accepted(cli: Cli, lent: None) -> None:
    done = cli("repair", recipe_path("tiny:mlp"), "--device", "cpu", "-q")
    assert done.code == 0
    assert "there is nothing to repair" in done.out


@pytest.mark.parametrize("words", [["nothing"], ["bert", "--device", "tpu"], ["bert", "--batch", "2,4"]])
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    done = cli("repair", *words)
    assert done.code == 2
    assert "Traceback" not in done.err
