"""Models that accept only some sizes: each target promises the sizes at which it is right, and refuses the others."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import RECIPES, Run, request_for

import exporter
from exporter import report, targets
from exporter.core import environment, tolerances
from exporter.core.contract import Narrowing
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ContractError
from exporter.core.records import Manifest, VariantRecord
from exporter.core.size_range import Range
from exporter.evidence import eager, narrowing
from exporter.model import capture, flattening, ranges
from exporter.runs import pipeline
from exporter.targets import trace
from exporter.workers.children import Zygote

spec = importlib.util.spec_from_file_location("stepped", RECIPES / "stepped.py")
assert spec is not None
assert spec.loader is not None
stepped = importlib.util.module_from_spec(spec)
sys.modules["stepped"] = stepped  # where inspect looks for it
spec.loader.exec_module(stepped)
TARGETS = "trace,script,onnx,export"
needs_compiler = pytest.mark.skipif(environment.compiler() is None, reason="no C++ compiler")


def line_of(model: type[torch.nn.Module], text: str) -> str:
    lines, start = inspect.getsourcelines(model)
    return f"{RECIPES / 'stepped.py'}:{start + next(i for i, line in enumerate(lines) if text in line)}"


# Deriving a range from accepted sizes alone.


@pytest.mark.parametrize(
    ("takes", "base", "promised", "found"),
    [
        (lambda n: n % 16 == 0, 64, Range(1, 256), Range(16, 256, multiple_of=16)),
        (lambda n: n % 16 == 0, 16, Range(16, 256), Range(16, 256, multiple_of=16)),
        (lambda n: n % 16 == 0, 256, Range(1, 256), Range(16, 256, multiple_of=16)),
        (lambda n: n % 40 == 0 and n >= 120, 400, Range(1, 800), Range(120, 800, multiple_of=40)),
        (lambda n: n % 6 == 0, 24, Range(2, 100, multiple_of=2), Range(6, 96, multiple_of=6)),
        (lambda n: n >= 7, 64, Range(1, 256), Range(7, 256)),
        (lambda n: n <= 77, 64, Range(1, 256), Range(1, 77)),
        (lambda n: n <= 4, 2, Range(1, 9), Range(1, 4)),
        (lambda n: 2 <= n <= 4, 2, Range(1, 9), Range(2, 4)),
        (lambda n: n <= 4, 1, Range(1, 9), Range(1, 4)),
        (lambda n: n in (8, 11, 13, 17), 8, Range(2, 64), None),
        (lambda n: n % 8 == 1, 33, Range(1, 256), None),  # a contract cannot express it
    ],
)
def test_the_range_and_step_that_describe_accepted_sizes(
    takes: Any, base: int, promised: Range, found: Range | None
) -> None:
    assert ranges.refused(takes, base, promised) is not None
    assert ranges.taken(takes, base, promised) == found


def test_a_range_without_refused_sizes_is_kept() -> None:
    assert ranges.refused(lambda n: True, 5, Range(1, 9)) is None


# Conditions of torch.export.


def captured(
    model: torch.nn.Module, *dims: Any, sizes: dict[str, int], **symbols: Range
) -> tuple[Any, list[Narrowing]]:
    """Capture a model that takes one tensor; return the result and the narrowed ranges of its symbols."""

    def inputs(at: dict[str, int]) -> tuple[torch.Tensor]:
        return (torch.randn([at[dim] if isinstance(dim, str) else dim for dim in dims]),)

    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, inputs(sizes))).eval()
    promised = Contract("m", (TensorSpec("x", "float32", dims),), (), symbols)
    found = capture.capture(flat, inputs(sizes), promised)
    return found, narrowing.find(found, flat, inputs, sizes, promised, "cpu")


def test_a_step_that_only_compilers_need() -> None:
    model = stepped.Pool()
    _, found = captured(model, 2, 3, "height", 20, sizes={"height": 24}, height=Range(12, 64))
    assert found == [Narrowing("height", Range(12, 64, multiple_of=2), line_of(stepped.Pool, "self.second("), "code")]


def test_a_branch_on_a_size_narrows_artifacts_of_the_graph() -> None:
    _, found = captured(stepped.Branch(), 2, "length", sizes={"length": 8}, length=Range(2, 64))
    assert found == [Narrowing("length", Range(2, 32), line_of(stepped.Branch, "if x.shape"), "graph")]


def test_a_range_is_narrowed_only_at_the_end_that_is_wrong() -> None:
    _, found = captured(stepped.Growing(), 2, "length", sizes={"length": 5}, length=Range(1, 40))
    assert found == [Narrowing("length", Range(1, 8), line_of(stepped.Growing, "if x.shape"), "graph")]


def test_a_condition_between_the_cases_of_a_golden_narrows_too() -> None:
    _, found = captured(stepped.Seventh(), 2, "length", sizes={"length": 64}, length=Range(1, 160))
    assert found == [Narrowing("length", Range(64, 69), line_of(stepped.Seventh, "return -x"), "graph")]


def test_a_condition_on_several_sizes_becomes_a_case(run: Run) -> None:
    manifest, _ = run("stepped:taller", "script,onnx")
    assert any(case.sizes["height"] > 2 * case.sizes["width"] for case in manifest.golden.cases)
    script, onnx = manifest.variants
    assert script.status == "passed", script.reason
    assert onnx.status == "passed", onnx.reason
    symbols = onnx.contract.symbols
    assert symbols["height"].max <= 2 * symbols["width"].min
    assert onnx.parity.refused > 0


def test_sizes_that_depend_on_each_other_are_narrowed_together() -> None:
    dims, sizes = ("height", "width"), {"height": 48, "width": 40}
    _, found = captured(stepped.Wider(), *dims, sizes=sizes, height=Range(16, 100), width=Range(16, 100))
    assert {one.symbol: one.bounds for one in found} == {"height": Range(48, 100), "width": Range(16, 48)}
    assert all(one.place == line_of(stepped.Wider, "return x * 2") for one in found)


def test_sizes_that_must_differ_are_narrowed_apart() -> None:
    sizes = {"batch": 2, "height": 6, "width": 9}
    symbols = {"batch": Range(1, 64), "height": Range(2, 16), "width": Range(2, 16)}
    _, found = captured(stepped.Square(), "batch", "height", "width", sizes=sizes, **symbols)
    height, width = (one.bounds for one in found)  # and not the batch, of which a condition is harmless
    assert max(height.sizes) < min(width.sizes)
    assert len(height.sizes) * len(width.sizes) > 40
    assert all(one.place == line_of(stepped.Square, "if x.shape[1]") for one in found)


@pytest.mark.parametrize("names", ["trace", "trace,export"], ids=["without a program", "with a program"])
def test_a_branch_on_equal_sizes_is_not_promised(run: Run, names: str) -> None:
    """Such a trace passed: the golden had no two equal sizes of this recipe."""
    manifest, place = run("stepped:square", names)
    for variant in manifest.variants:
        if names == "trace":
            assert variant.status == "failed"
            continue
        assert variant.status == "passed", variant.reason
        promised = variant.contract.symbols
        assert not set(promised["height"].sizes) & set(promised["width"].sizes)
        artifact = exporter.open_artifact(place / variant.artifact.path)
        with pytest.raises(ContractError):
            artifact(torch.ones(2, 12, 12, 3))


def test_a_step_with_an_offset_is_only_a_warning() -> None:
    made, found = captured(stepped.Pool(), 2, 3, "height", 20, sizes={"height": 25}, height=Range(12, 64))
    assert [one for one in found if one.of != "guards"] == []
    (said,) = narrowing.limits(made, found, {"height": 25})
    assert re.fullmatch(r"torch\.export accepts height only as 2\*n[+-]\d+ \(.*stepped\.py:\d+\)", str(said))


class Shy(torch.nn.Module):
    """Fails only in eager, at sizes that the graph does not accept either."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and x.shape[1] > 16:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return x * 2 if x.shape[1] <= 16 else x * 3


def test_sizes_that_fail_in_eager_narrow_nothing() -> None:
    _, found = captured(Shy(), 2, "length", sizes={"length": 8}, length=Range(2, 64))
    assert found == []


def test_running_out_of_memory_narrows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that fails only for lack of memory may still accept the size."""
    run = eager.run

    def full(module: Any, data: Any, device: str) -> Any:
        if isinstance(module, torch.fx.GraphModule) and data[0].shape[1] > 16:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        return run(module, data, device)

    monkeypatch.setattr(eager, "run", full)
    with pytest.raises(RuntimeError, match="can't allocate"):
        captured(stepped.Branch(), 2, "length", sizes={"length": 8}, length=Range(2, 64))


def test_a_program_without_conditions_narrows_nothing() -> None:
    made, found = captured(torch.nn.Linear(4, 2), "batch", 4, sizes={"batch": 2}, batch=Range(1, 8))
    assert found == []
    assert made.rules == {}


# Whole runs.


def variants(manifest: Manifest) -> dict[str, VariantRecord]:
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    return {variant.name: variant for variant in manifest.variants}


def shown(name: str, place: Path, variant: VariantRecord, sizes: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes that the artifact accepts, after comparing it with eager; its contract refuses the others."""
    assert variant.artifact is not None
    recipe = getattr(stepped, name)
    artifact = exporter.open_artifact(place / variant.artifact.path, threads=1)
    assert artifact.contract == variant.contract, "the manifest has the artifact's contract"
    torch.manual_seed(0)
    model = recipe.load("random").eval()
    for size in sizes:
        (tensor,) = recipe.inputs(*size).values()
        try:
            (output,) = artifact(tensor).values()
        except ContractError:
            continue
        with torch.no_grad():
            wanted = model(tensor)
        torch.testing.assert_close(output, wanted, rtol=1e-3, atol=1e-4)
        yield size


@pytest.mark.parametrize(
    ("name", "symbol", "step", "line", "inside", "outside"),
    [
        ("view", "length", 16, "x.view", [(1, 32), (3, 48), (4, 256)], [(1, 17), (2, 24), (2, 40), (2, 255)]),
        ("patch", "height", 8, ".reshape", [(1, 16, 16), (3, 88, 24), (2, 40, 96)], [(1, 17, 16), (1, 20, 24)]),
        ("unet", "height", 16, "torch.cat", [(1, 32, 32), (2, 48, 80), (1, 96, 32)], [(1, 40, 32), (1, 33, 32)]),
        ("hop", "samples", 40, "unflatten", [(1, 80), (3, 200), (2, 800)], [(1, 41), (1, 100), (1, 799)]),
    ],
)
def test_sizes_that_the_model_refuses_are_in_no_contract(
    run: Run, name: str, symbol: str, step: int, line: str, inside: list[Any], outside: list[Any]
) -> None:
    manifest, place = run(f"stepped:{name}", TARGETS)
    assert manifest.contract is not None
    bounds = manifest.contract.symbols[symbol]
    assert (bounds.min, bounds.multiple_of) == (step, step)
    model = type(getattr(stepped, name).load("random"))
    said = next(warning for warning in manifest.warnings if warning.startswith(f"{symbol} is promised only at "))
    assert line_of(model, line) in said
    for variant in variants(manifest).values():
        assert variant.parity is not None
        assert variant.parity.cases > 5
        assert list(shown(name, place, variant, inside + outside)) == inside, variant.name
    text = report.render(manifest, "table")
    assert f"{symbol} {bounds.min} to {bounds.max}, multiples of {step}" in " ".join(text.split())


@needs_compiler
def test_one_target_alone_is_narrowed(zygote: Zygote, lent_zygote: None, tmp_path: Path) -> None:
    """Inductor's code for ceil-mode pooling supports only even sizes; all other targets support any size."""
    manifest, place = pipeline.run(request_for("stepped:pool", tmp_path / "bundle", f"{TARGETS},compile"))
    made = variants(manifest)
    even, odd = [(1, 12, 24), (2, 24, 64), (4, 64, 32)], [(1, 13, 24), (2, 25, 33), (1, 24, 63)]
    for name in TARGETS.split(","):
        assert made[name].contract.symbols == manifest.contract.symbols  # type: ignore[union-attr]
        assert len(list(shown("pool", place, made[name], even + odd))) == 6, name
    narrowed = made["compile"]
    assert narrowed.contract is not None
    assert str(narrowed.contract.symbols["height"]) == "12 to 64, multiples of 2"
    assert list(shown("pool", place, narrowed, even + odd)) == even
    place_of = line_of(stepped.Pool, "self.second(")
    assert narrowed.notes[:2] == (f"height: multiples of 2 ({place_of})", f"width: multiples of 2 ({place_of})")
    assert narrowed.parity is not None
    assert narrowed.parity.refused >= 2
    assert narrowed.parity.cases > 8
    for form in ("table", "md", "html"):
        assert "height: multiples of 2" in report.render_all([(manifest, place)], form)


@needs_compiler
def test_a_package_of_a_model_with_a_step(run: Run) -> None:
    manifest, place = run("stepped:view", "compile")
    inside = [(1, 16), (3, 48), (4, 256)]
    assert list(shown("view", place, variants(manifest)["compile"], [*inside, (2, 24), (2, 255)])) == inside


def test_a_branch_on_a_size_narrows_the_exported_program(run: Run) -> None:
    """torch.jit.script keeps the branch and promises every size."""
    manifest, place = run("stepped:branch", "trace,script,export")
    made = variants(manifest)
    sizes = [(1, 2), (2, 32), (2, 33), (1, 64)]
    assert list(shown("branch", place, made["script"], sizes)) == sizes
    assert made["script"].parity.refused == 0  # type: ignore[union-attr]
    for name in ("trace", "export"):  # the trace took the same branch
        assert list(shown("branch", place, made[name], sizes)) == sizes[:2]
        assert made[name].notes[0] == f"length: 2 to 32 ({line_of(stepped.Branch, 'if x.shape')})"
        assert made[name].parity.refused > 0  # type: ignore[union-attr]


def test_a_needless_condition_is_not_saved(run: Run) -> None:
    manifest, place = run("stepped:halves", "export")
    made = variants(manifest)["export"]
    assert made.contract is not None
    assert made.contract.symbols == {"batch": Range(1, 8)}
    assert not made.notes
    x = torch.ones(1, 4)
    torch.export.load(place / "exported.pt2").module()(x, x)  # raised "Guard failed"


def test_sizes_that_add_up_are_also_checked_at_their_least_together(run: Run) -> None:
    manifest, place = run("stepped:with_past", "export")
    assert any(case.sizes == {"new": 1, "past": 1} for case in manifest.golden.cases)
    assert variants(manifest)["export"].status == "passed", variants(manifest)["export"].reason
    least = torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 2)
    torch.export.load(place / "exported.pt2").module()(*least)  # raised "Guard failed"


def test_a_float32_output_beside_a_float64_one_may_have_its_rounding_error(run: Run) -> None:
    manifest, _ = run("tiny:sums", "onnx")
    made = variants(manifest)["onnx"]
    assert manifest.golden is not None
    assert manifest.golden.tolerance == tolerances.FLOAT64
    assert manifest.golden.tolerances == {"float32": tolerances.FLOAT32}
    assert made.parity is not None
    assert made.parity.rmse_ratio is not None
    assert made.parity.rmse_ratio > 5, "too much for the rule without the tolerance"


@pytest.mark.parametrize(("model", "right"), [(stepped.Branch(), False), (torch.nn.ReLU(), True)])
def test_a_trace_is_narrowed_only_if_it_is_wrong(model: torch.nn.Module, right: bool, tmp_path: Path) -> None:
    """The contract is that of an exported program that is wrong from size 33 on."""

    def make_at(sizes: dict[str, int]) -> tuple[torch.Tensor]:
        return (torch.randn(2, sizes["length"]),)

    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, make_at({"length": 16}))).eval()
    spec = TensorSpec("x", "float32", (2, "length"))
    whole = Contract("m", (spec,), (), {"length": Range(1, 64)}, target="trace")
    narrow = dataclasses.replace(whole, symbols={"length": Range(2, 32)})
    program = capture.Program(narrow, "cpu", lambda: flat, lambda: make_at({"length": 16}), None, whole=whole)
    program.make_at = make_at
    assert [inputs[0].shape[1] for inputs in program.outside()] == [1, 33]
    assert trace.export(program, tmp_path / "trace.pt", targets.Options()).whole is right
    promised = trace.read_contract(tmp_path / "trace.pt").symbols
    assert promised == (whole if right else narrow).symbols


def test_a_minimum_size(run: Run) -> None:
    manifest, _ = run("stepped:least", "trace")
    assert manifest.contract is not None
    assert str(manifest.contract.symbols["length"]) == "7 to 256"
    variants(manifest)


def test_sizes_without_a_pattern_fail_with_the_models_error(run: Run) -> None:
    manifest, _ = run("stepped:primes", "trace")
    (row,) = manifest.variants
    assert row.status == "failed"
    assert "the model fails at batch=2 length=9: ValueError: 9 will not do" in row.reason
