"""`exporter explain`: its findings for models with known defects; a crash in one section does not stop the others."""

from __future__ import annotations

import dataclasses
import importlib
import json
import linecache
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import Cli, recipe_path
from support.operators import BUILT, needs_the_library

from exporter import targets
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError, JobError, RecipeError
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.report import explanation
from exporter.targets import _onnx_translations
from exporter.workers import explain, keeping, loading
from exporter.workers.children import Zygote
from exporter.workers.explain import SECTIONS, Explanation, Finding, Section
from exporter.workers.explain import trace as tracing
from exporter.workers.explain.subject import Subject
from exporter.workers.messages import Job

QUICK = ("trace", "export", "operators")


def job_for(recipe: str, folder: Path, ops_libs: tuple[str, ...] = ()) -> Job:
    source = recipes.find(recipe_path(recipe))
    return Job(source.label, source, folder, targets.Options(threads=1, ops_libs=ops_libs), weights="random")


Say = Callable[[str, str], list[Finding]]


@pytest.fixture
def say(tmp_path: Path) -> Say:
    """A function that returns the findings of a section for a recipe: `say("trace", "defects:branch")`."""

    def act(section: str, recipe: str) -> list[Finding]:
        job = job_for(recipe, tmp_path)
        loaded = loading.load_model(job)
        subject = Subject(job, loaded, keeping.find(job, loaded))
        found: list[Finding] = importlib.import_module(f"exporter.workers.explain.{section}").examine(subject)
        return found

    return act


def line(finding: Finding) -> str:
    """Return the source line that a finding names."""
    path, _, number = finding.place.rpartition(":")
    return linecache.getline(path, int(number)).strip()


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "bad"]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_simple_model_has_no_problems(say: Say, section: str) -> None:
    findings = say(section, "tiny:mlp")
    assert findings[0].level == "ok"
    assert bad(findings) == []


def test_a_branch_that_trace_bakes(say: Say) -> None:
    wrong, matters = say("trace", "defects:branch")
    assert (wrong.level, matters.level) == ("bad", "bad")
    assert "as values" in wrong.text
    assert matters.text == "matters: Converting a tensor to a Python boolean"
    assert line(matters) == "if bool(x.sum() > 0):"


def test_a_size_as_a_pools_kernel_is_right_in_a_trace() -> None:
    class Pooling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.nn.functional.max_pool1d(x, x.size(2)),)

    traced = tracing.trace(Pooling().eval(), (torch.randn(2, 4, 8),))
    assert tracing._difference(Pooling().eval(), traced, (torch.randn(3, 4, 20),)) == ""


def test_a_loop_that_trace_bakes_without_a_warning(say: Say) -> None:
    wrong, *lines = say("trace", "defects:loop")
    assert "batch=3" in wrong.text
    assert {finding.level for finding in lines} == {"bad"}
    assert "rows.append(x[i] * 2.0)" in map(line, lines)


def test_a_warning_that_does_not_matter(say: Say) -> None:
    fine, warned = say("trace", "explained:asserts")
    assert fine.level == "ok"
    assert warned.text.startswith("harmless here: ")
    assert "# harmless" in line(warned)


def test_an_input_that_is_changed_in_place(say: Say) -> None:
    fine, mutated = say("trace", "tiny:in_place")
    assert fine.level == "ok"
    assert mutated.text.startswith("x: the code changes an input in place")


def test_harmless_and_serious_warnings_are_distinguished(say: Say) -> None:
    found = say("trace", "explained:mixed")
    verdicts = {line(finding).rpartition("# ")[2]: finding.text.partition(":")[0] for finding in found if finding.place}
    assert verdicts == {"harmless": "harmless here", "matters": "matters"}


def test_a_model_that_only_the_bridge_can_script(say: Say) -> None:
    natively, bridged = say("script", "explained:stars")
    assert natively.level == "note", "because the bridge can script it"
    assert "*args" in natively.text
    assert "# unscriptable" in line(natively)
    assert bridged.level == "ok"


def test_a_model_that_cannot_be_scripted(say: Say) -> None:
    natively, bridged = say("script", "broken:branch_on_data_with_stars")
    assert (natively.level, bridged.level) == ("bad", "bad")
    assert bridged.text.startswith("through the exported graph: A branch depends on the values")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's compiler reads it
def test_a_model_that_computes_gradients(say: Say) -> None:
    with pytest.raises(RuntimeError, match="forward computes gradients"):
        say("trace", "gradients:counting")
    assert any("compilation" in finding.text for finding in say("compile", "gradients:counting"))
    assert bad(say("export", "gradients:counting")) == []


def test_counts_of_one_are_in_the_singular(say: Say) -> None:
    compiled, total = say("compile", "explained:doubles")
    assert compiled.text == "one graph of 1 operation, without breaks"
    assert total.text == "1 compilation over 1 size"
    (translated,) = say("onnx", "explained:doubles")
    assert translated.text.startswith("the only operator has a translation")


def test_graph_breaks_have_lines(say: Say) -> None:
    found = bad(say("compile", "explained:breaks"))
    assert len(found) == 1
    assert "# break" in line(found[0])


def test_recompilations_are_named_by_their_sizes(say: Say) -> None:
    found = say("compile", "explained:narrow")
    again = [finding for finding in found if finding.text.startswith("recompiled at batch=")]
    assert again
    assert all("size mismatch" in finding.text or "x" in finding.text for finding in again)


def test_a_size_that_torch_export_fixes(say: Say) -> None:
    takes, fixed, *_ = say("export", "defects:loop")
    assert takes.level == "ok"
    assert fixed.text == "torch.export fixed batch at 2"
    assert line(fixed) == "for i in range(x.shape[0]):"


def test_conditions_on_sizes_have_lines_and_names(say: Say) -> None:
    found = say("export", "explained:narrow")
    (condition,) = [finding for finding in found if finding.text.startswith("the code checks whether")]
    assert "batch" in condition.text
    assert "# condition" in line(condition)


def test_a_branch_that_torch_export_rejects(say: Say) -> None:
    (found,) = say("export", "defects:branch")
    assert found.text.startswith("A branch depends on the values of tensors: torch.export")
    assert "torch.cond" in found.remedy
    assert found.remedy.endswith("`exporter repair MODEL` may find a patch")
    assert line(found) == "if bool(x.sum() > 0):"


def test_an_operator_that_onnx_lacks(say: Say) -> None:
    (found,) = say("onnx", "explained:eigenvalues")
    assert found.level == "bad"
    assert "_linalg_eigh" in found.text
    assert "# missing" in line(found)
    assert found.remedy


def test_onnx_keeps_no_state(say: Say) -> None:
    found = say("onnx", "stateful:conv_streaming")
    assert [finding.level for finding in found] == ["bad", "ok"]
    assert found[0].text == "ONNX carries no state from call to call, and the model keeps context"
    assert "self.context" in line(found[0])
    assert found[0].remedy.startswith("--state inputs")


def test_an_operator_with_a_translation_of_exporters_own(say: Say) -> None:
    (found,) = say("onnx", "explained:distances")
    assert found.level == "ok"


def test_an_operator_that_only_the_older_exporter_has(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_onnx_translations, "table", lambda *_: {})
    stands_in, missing = say("onnx", "explained:distances")
    assert (stands_in.level, missing.level) == ("ok", "note")
    assert "older exporter" in stands_in.text
    assert "_cdist_forward" in missing.text
    assert "# older" in line(missing)


def test_onnx_needs_the_exported_graph(say: Say) -> None:
    (found,) = say("onnx", "defects:branch")
    assert (found.level, found.text) == ("bad", "there is no exported graph to translate: see export")


def test_custom_operators_must_be_loaded_by_the_caller(say: Say) -> None:
    (found,) = say("operators", "explained:custom")
    assert found.level == "bad"
    assert "operators of explained" in found.text
    assert "--ops-lib" in found.remedy
    (missing,) = say("onnx", "explained:custom")
    assert "custom operator" in missing.text


def test_operators_of_a_known_library(say: Say) -> None:
    (found,) = say("operators", "operators:aligned")
    assert found.level == "note"
    assert found.text.startswith("operators of torchvision: C++ loads them from /")


def test_operators_are_found_without_an_exported_graph(say: Say) -> None:
    (found,) = say("operators", "defects:branch")
    assert found.level == "ok"


@pytest.fixture
def lent(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the shared zygote, and only the quick sections."""
    monkeypatch.setattr("exporter.workers.explain.Zygote", lambda *_: zygote.lend())
    monkeypatch.setattr("exporter.workers.explain.SECTIONS", QUICK)


def explained(recipe: str, folder: Path, timeout: float = 300.0) -> tuple[Explanation, list[str]]:
    steps_said: list[str] = []
    return explain.run(job_for(recipe, folder), folder / "log", steps_said.append, timeout), steps_said


def test_a_crashing_section_does_not_stop_the_others(lent: None, tmp_path: Path) -> None:
    """Every section that needs torch.export crashes, and the model is loaded again for the next section."""
    found, said = explained("broken:capture_segfaults", tmp_path)
    trace, export, operators = found.sections
    assert trace.findings[0].level == "ok"
    assert "was ended by SIGSEGV" in export.findings[0].text
    assert "was ended by SIGSEGV" in operators.findings[0].text
    assert said == ["load model", "trace", "export", "load model", "operators"]


def test_an_error_in_a_section_is_a_finding(lent: None, tmp_path: Path) -> None:
    found, said = explained("broken:trace_raises", tmp_path)
    (raised,) = found.sections[0].findings
    assert raised.text == "ValueError: not to be traced"
    assert "not to be traced" in line(raised)
    assert said == ["load model", *QUICK]


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        ("broken:load_fails", RecipeError, "the weights are gone"),
        ("broken:forward_raises", ExporterError, r"forward does not work \(.*broken\.py:\d+\)"),
        ("broken:forward_segfaults", JobError, "SIGSEGV"),
    ],
)
def test_a_model_that_does_not_run(
    lent: None, tmp_path: Path, recipe: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        explained(recipe, tmp_path)


def test_a_section_that_times_out_does_not_stop_the_others(lent: None, tmp_path: Path) -> None:
    found, _ = explained("broken:trace_hangs", tmp_path, timeout=20.0)
    trace, export, _ = found.sections
    (late,) = trace.findings
    assert late.text.endswith("took longer than 20 s and was stopped")
    assert late.remedy == "raise --timeout"
    assert export.findings[0].level == "ok"


def test_a_model_that_times_out(cli: Cli, lent: None) -> None:
    done = cli("explain", recipe_path("broken:forward_hangs"), "--device", "cpu", "--timeout", "2")
    assert done.code == 1
    assert "took longer than 2 s and was stopped" in done.err
    assert "raise --timeout" in done.err


def test_the_options_reach_the_job(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[tuple[Job, float]] = []

    def run(job: Job, log: Path, begun: Callable[[str], None], timeout: float) -> Explanation:
        jobs.append((job, timeout))
        return Explanation("m", "cpu", {}, Contract("m", (), (), {}), ())

    monkeypatch.setattr(explain, "run", run)
    words = ["--batch", "3", "--size", "batch=2..9", "--dynamic", "none", "--seed", "7", "--ops-lib", __file__]
    assert cli("explain", recipe_path("tiny:mlp"), "--device", "cpu", "--timeout", "60", *words).code == 0
    ((job, timeout),) = jobs
    assert (job.sizes, job.ranges, job.dynamic) == ({"batch": 3}, {"batch": Range(2, 9)}, "none")
    assert (job.seed, job.options.ops_libs, timeout) == (7, (__file__,), 60.0)


@needs_the_library
def test_operators_of_a_user_library(cli: Cli, lent: None) -> None:
    words = ["explain", recipe_path("operators:affine"), "--device", "cpu", "--json", "-q"]
    done = cli(*words, "--ops-lib", BUILT)
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["sections"][-1]["findings"]
    assert found["level"] == "note"
    assert found["text"].startswith("operators of exporter_test: C++ must load the library")
    assert found["text"].endswith(str(BUILT.resolve()))
    assert cli(*words).code == 1, "the operator is not registered"


def test_the_command(cli: Cli, lent: None) -> None:
    done = cli("explain", recipe_path("defects:branch"), "--device", "cpu", "--size", "batch=2")
    assert done.code == 0
    assert "branch on cpu; batch 2; dynamic: batch 1 to 64" in done.out
    assert "matters: Converting a tensor to a Python boolean" in done.out
    assert "defects.py:12" in done.out
    assert "export …" in done.err


def test_the_command_in_json(cli: Cli, lent: None) -> None:
    done = cli("explain", recipe_path("tiny:mlp"), "--device", "cpu", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [section["name"] for section in found["sections"]] == list(QUICK)
    assert found["sizes"] == {"batch": 2}
    assert {"level", "text", "place", "remedy"} == set(found["sections"][0]["findings"][0])


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["bert", "--size", "batch"],
        ["bert", "--device", "tpu"],
        ["bert", "--ops-lib", "/nowhere.so"],
        ["bert", "--timeout", "0"],
    ],
)
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    done = cli("explain", *words)
    assert done.code == 2
    assert "Traceback" not in done.err


@pytest.mark.parametrize("columns", [20, 80, 120, 300])
def test_the_report_fits_its_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    finding = Finding("bad", f"[not] {'markup ' * 40}", "a/folder/net.py:12", "do something " * 20)
    report = explanation.render(
        Explanation(
            "m", "cpu", {"batch": 2}, Contract("m", (), (), {"batch": Range(1, 4)}), (Section("trace", (finding,)),)
        )
    )
    lines = report.splitlines()
    assert max(map(len, lines)) <= min(max(columns, explanation.NARROWEST), explanation.WIDEST)
    assert any(line.strip() == "at a/folder/net.py:12" for line in lines)
    assert "[not]" in report


@pytest.mark.parametrize(("weights", "warned"), [("auto", False), ("random", False), ("pretrained", True)])
def test_weights_that_a_function_cannot_choose(tmp_path: Path, weights: str, warned: bool) -> None:
    job = job_for("tiny:made", tmp_path)
    said = loading.load_model(dataclasses.replace(job, weights=weights)).warnings
    assert any("the recipe's function makes its own weights" in text for text in said) == warned


def test_a_model_with_state(lent: None, tmp_path: Path) -> None:
    found, _ = explained("stateful:conv_streaming", tmp_path)
    assert [finding.text for section in found.sections for finding in bad(list(section.findings))] == []
