"""The user's own inputs and metric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commands import Run, recipe_path
from support.schema import fits_the_schema, rows

from exporter import report
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import RecipeError
from exporter.core.progress import Listener
from exporter.core.records import MetricRecord, VariantRecord
from exporter.core.size_range import Range
from exporter.evidence import golden, metrics, samples
from exporter.model import flattening, recipes
from exporter.runs import check_bundle

CONTRACT = Contract(
    "measured",
    (TensorSpec("x", "float32", ("batch", "length")),),
    (TensorSpec("scores", "float32", ("batch", 3)),),
    {"batch": Range(1, 8), "length": Range(4, 64)},
)


def read(name: str) -> list[samples.Sample]:
    recipe = recipes.load(recipes.find(recipe_path(f"measured:{name}")))
    model = recipe.load("auto")
    return samples.read(recipe, flattening.flatten_inputs(model, recipe.inputs()), model, CONTRACT)


@pytest.mark.parametrize("name", ["measured", "fast"])
def test_read_returns_contract_tensors_with_their_sizes(name: str) -> None:
    found = read(name)
    assert [one.case.name for one in found] == [f"batch=1 length={n} sample {i}" for i, n in enumerate((8, 16, 31))]
    assert [one.sizes for one in found] == [{"batch": 1, "length": n} for n in (8, 16, 31)]
    assert torch.equal(found[0].inputs[0], torch.linspace(-1, 1, 8)[None])


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("sample_does_not_fit", "sample 0 does not fit: .*length is 65, the contract allows 4 to 64", "--size"),
        (
            "samples_raise",
            r"samples\(\) fails: FileNotFoundError: the recordings are gone \(.*measured.py:\d+\)",
            "return",
        ),
        ("metric_alone", r"has metric\(\) but no samples\(\)", r"samples\(\)"),
    ],
)
def test_invalid_samples_raise(name: str, cause: str, remedy: str) -> None:
    with pytest.raises(RecipeError, match=cause) as raised:
        read(name)
    assert remedy.replace("\\", "") in raised.value.remedy


def evaluate(name: str) -> float | None:
    recipe = recipes.load(recipes.find(recipe_path(f"measured:{name}")))
    outputs = [(torch.tensor([[float(i), 0.0, 0.0]]),) for i in range(3)]
    return samples.evaluate(recipe, outputs, ["scores"])


def test_metric_receives_outputs_by_name_and_the_sample() -> None:
    assert evaluate("measured") == pytest.approx((0 + 8 + 1 + 16 + 2 + 31) / 3)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("metric_raises", r"metric\(\) fails at sample 0: KeyError: 'logits' \(.*measured.py:\d+\)"),
        ("metric_returns_text", r"metric\(\) returns str good at sample 0"),
    ],
)
def test_invalid_metrics_raise(name: str, cause: str) -> None:
    with pytest.raises(RecipeError, match=cause):
        evaluate(name)


@pytest.mark.parametrize(
    ("value", "least", "loss", "said"),
    [
        (0.9, 0.8, 0.1, ""),
        (0.9, None, None, ""),
        (None, None, None, ""),
        (0.9, 0.95, None, "the metric is 0.9, the minimum is 0.95; eager's is 0.96"),
        (0.9, None, 0.05, "the metric is 0.9; eager's is 0.96, a loss of 0.06; the maximum loss is 0.05"),
        (0.99, None, 0.0, ""),
        (None, 0.1, None, "the metric is unknown, the minimum is 0.1; eager's is 0.96"),
        (None, None, 0.1, "the metric is unknown; eager's is 0.96; the maximum loss is 0.1"),
    ],
)
def test_metric_bounds(value: float | None, least: float | None, loss: float | None, said: str) -> None:
    metric = MetricRecord(0.96, 3, least, loss)
    assert metrics.broken(value, metric) == said
    passed = VariantRecord("trace", "trace", "passed", "done", metric=value)
    held = metrics.hold(passed, metric)
    assert (held.status, held.stage, held.reason) == (("failed", "metric", said) if said else ("passed", "done", ""))
    failed = replace(passed, status="failed", reason="worse")
    assert metrics.hold(failed, metric) == failed


def test_a_run_reports_the_metric_of_eager_and_every_variant(run: Run, lent_zygote: None) -> None:
    manifest, place = run("measured:measured", "trace", max_metric_loss=1e-3)
    metric = manifest.metric
    assert metric is not None
    assert (metric.samples, metric.least, metric.most_loss) == (3, None, 1e-3)
    assert rows(manifest)["trace"].metric == pytest.approx(metric.eager)
    assert manifest.golden is not None
    assert manifest.golden.cases[-1].name == "batch=1 length=31 sample 2"
    cases = golden.samples(golden.read(place / "golden.safetensors"))
    assert [case.inputs[0].shape[1] for case in cases] == [8, 16, 31]
    fits_the_schema(place)
    for form in ("table", "md", "html"):
        page = report.render_all([(manifest, place)], form)
        assert f"metric of eager {metric.eager:.4g} over 3 samples" in page
        assert page.count(f"{metric.eager:.4g}") > 1
    checked = check_bundle.run(place, check_bundle.CheckOptions(threads=1, timeout=300.0), Listener())
    assert checked.metric == metric
    assert rows(checked)["trace"].metric is None
    assert metrics.NOT_AGAIN in checked.warnings


@pytest.mark.parametrize("bench", [False, True])
def test_a_metric_bound_fails_a_variant_with_parity(run: Run, lent_zygote: None, bench: bool) -> None:
    manifest, place = run("measured:measured", "trace", min_metric=1e3, bench=bench, time_budget=0.1)
    found = rows(manifest)["trace"]
    assert (found.status, found.stage) == ("failed", "metric")
    assert found.parity is not None
    assert found.parity.verdict == "exact"
    assert "the minimum is 1000" in found.reason
    assert not (place / "trace.pt").exists()


@pytest.mark.parametrize(
    ("name", "cause"),
    [("tiny:mlp", "need a metric, and the recipe has none"), ("measured:metric_raises", "KeyError: 'logits'")],
)
def test_a_missing_or_failing_metric_ends_the_run(run: Run, lent_zygote: None, name: str, cause: str) -> None:
    with pytest.raises(RecipeError, match=cause):
        run(name, "trace", min_metric=0.5)


def test_calibration_data_include_the_samples(tmp_path: Path) -> None:
    from exporter.targets import Options
    from exporter.workers import messages, tasks

    source = recipes.find(recipe_path("measured:measured"))
    asked = messages.Job("measured", source, tmp_path, Options(threads=1))
    sizes = {"batch": 2, "length": 16}
    prepared = messages.Prepared(CONTRACT, sizes, sizes, "random", 0, 0, 0.0)
    program = tasks.program_of(asked, prepared, "onnx")
    unusual = ("zeros", "ones", "negative", "tiny")
    drawn = [(2, 16) for _ in (*tasks.SAMPLES, *unusual)]
    others = [(1, 16), (3, 16), (8, 16), (2, 4), (2, 17), (2, 64), (3, 5)]
    assert [tuple(inputs[0].shape) for inputs in program.samples] == [(1, 8), (1, 16), (1, 31), *drawn, *others]
    assert program.calibration == "calibrated with 3 of samples() and 75 generated inputs"


@pytest.mark.parametrize(
    ("size", "most", "count"), [(1, 99, 64), (256, 99, 64), (256, 20, 20), (1024, 99, 16), (1, 2, 8)]
)
def test_small_inputs_are_calibrated_with_more_of_them(size: int, most: int, count: int) -> None:
    """The largest of few values says little about the largest of others."""
    from exporter.workers import tasks

    found = tasks._enough(lambda seed: (torch.full((size,), float(seed)),), most)
    assert [int(one[0][0]) for one in found] == list(tasks.SAMPLES[:count])
    ids = torch.ones(9, dtype=torch.int64)
    assert len(tasks._enough(lambda seed: (ids, torch.ones(size)), most)) == 8, "a mask says nothing about activations"


def test_calibration_data_have_the_sizes_that_the_artifact_allows() -> None:
    """Not those that a step or an entry excludes, nor an example that is excluded."""
    from exporter.workers import tasks

    def sizes(base: dict[str, int], used: dict[str, int], **symbols: Range) -> list[dict[str, int]]:
        promised: Any = SimpleNamespace(symbols=symbols)
        return [one for one, seed in tasks._others(base, used, promised) if one != used and not seed]

    batches = [{"batch": size} for size in (1, 3, 8)]
    assert sizes({"batch": 2}, {"batch": 2}, batch=Range(1, 8)) == batches
    assert sizes({"batch": 1}, {"batch": 2}, batch=Range(2, 2)) == []
    assert sizes({"batch": 1}, {"batch": 4}, batch=Range(1, 16, multiple_of=4)) == [
        {"batch": 8}, {"batch": 12}, {"batch": 16},
    ]  # fmt: skip
    entries = [one | {"length": 32} for one in batches]
    assert sizes({"batch": 2, "length": 16}, {"batch": 2, "length": 32}, batch=Range(1, 8)) == entries
    assert sizes({}, {}) == []


class Logarithm(torch.nn.Module):
    """Refuses ones, does not return from large numbers, and is not finite at others; its state is only added."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor]:
        if float(x.sum()) == x.numel():
            raise ValueError("ones")
        while float(x.max()) == 0:
            pass
        return (x.log() + state,)


def test_calibration_data_include_the_unusual_values_that_the_model_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.core import time_limit
    from exporter.workers import tasks

    monkeypatch.setattr(time_limit, "LEAST_S", 0.1)
    given, state = torch.tensor([[0.5, 2.0]]), torch.tensor([3.0])
    loaded: Any = SimpleNamespace(names=("x",), module=Logarithm(), state=None)
    found, *again = tasks._unusual(loaded, (given, state), "cpu")
    assert len(again) == tasks.FEWEST - 1
    assert 0 < float(found[0].max()) < torch.finfo(torch.float32).tiny, "of zeros, ones, negative, large and tiny ones"
    assert found[1] is state


def test_an_int8_row_names_its_calibration_data(run: Run, lent_zygote: None) -> None:
    manifest, place = run("measured:measured", "compile@int8,onnx@int8,trace@int8")
    said = {name: "; ".join(row.notes) for name, row in rows(manifest).items()}
    for name in ("compile@int8", "onnx@int8"):
        assert "calibrated with 3 of samples() and 75 generated inputs" in said[name]
    assert "calibrated" not in said["trace@int8"]
    assert "calibrated with 3 of samples()" in report.render_all([(manifest, place)], "md")


def streamed() -> list[float]:
    """Return the metric of each sample, computed with the model itself."""
    recipe = recipes.load(recipes.find(recipe_path("measured:streamed")))
    model = recipe.load("auto").eval()
    with torch.no_grad():
        return [recipe.metric({"output": model(**one)}, one) for one in recipe.samples()]


@pytest.mark.parametrize("state", ["carry", "inputs"])
def test_samples_of_a_stateful_model_form_one_sequence(run: Run, lent_zygote: None, state: str) -> None:
    manifest, root = run("measured:streamed", "trace", state=state)
    assert manifest.metric is not None
    assert manifest.metric.samples == 3
    expected = sum(streamed()) / 3
    assert manifest.metric.eager == pytest.approx(expected, rel=1e-5)
    found = rows(manifest)["trace"]
    assert (found.status, found.reason) == ("passed", "")
    assert found.metric == pytest.approx(expected, rel=1e-5)
    own = golden.samples(golden.read(root / "golden.safetensors"))
    assert [(case.name, case.step) for case in own] == [(f"batch=2 sample {i}", i) for i in range(3)]


def test_samples_of_several_sizes_cannot_share_state_of_that_size(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the size batch of state.h differs") as raised:
        calibrated("measured:streamed_of_two_sizes", tmp_path)
    assert raised.value.remedy == "give samples with the same batch"


def test_calibration_calls_continue_from_the_previous_state(tmp_path: Path) -> None:
    found = calibrated("measured:streamed", tmp_path)
    held = [float(state[0, 0]) for _, state in found[:3]]
    assert held == [0.0, 1.0, 2.5]  # h = 0.5 * h + x, for x of 1, 2 and 3
    assert not found[3][1].any()  # the drawn inputs form their own sequence, and so do unusual values
    assert all(state.any() for _, state in found[4:11])
    ones = next(i for i in range(11, len(found)) if bool((found[i][0] == 1).all()))
    assert [float(state[0, 0]) for _, state in found[ones : ones + 3]] == [0.0, 1.0, 1.5]


def calibrated(recipe: str, folder: Path) -> list[tuple[torch.Tensor, ...]]:
    """Return the int8 calibration data of a stateful model."""
    from exporter.model.state import stateful as states
    from exporter.targets import Options
    from exporter.workers import keeping, loading, messages, tasks

    source = recipes.find(recipe_path(recipe))
    asked = messages.Job("streamed", source, folder, Options(threads=1))
    loaded = loading.load_model(asked)
    found = keeping.find(asked, loaded)
    states.save(loaded.kept, asked.state_file)
    return tasks.program_of(
        asked, messages.Prepared(found, {"batch": 3}, {"batch": 2}, "random", 0, 0, 0.0), "onnx"
    ).samples
