"""Profiling a training step: what it computes, and the lines to which its time goes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import trained
from support.commands import Cli, Run
from torch import nn

from exporter.core.errors import ExportError, RecipeError, UsageError
from exporter.core.profile_records import Origin, Peaks, Step, Steps, Work
from exporter.evidence import attribution
from exporter.model import recipes
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.model.state.snapshot import Snapshot
from exporter.runs import profile_training
from exporter.runs.profile_bundle import Asked
from exporter.workers.loading import LoadedModel
from exporter.workers.profile import FORMS, training, training_graphs, training_step
from exporter.workers.profile.training_step import Expected, TrainingStep

SLOW = f"blocks.{trained.SLOW}"


def place_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    (at,) = (first + index for index, line in enumerate(lines) if text in line)
    return f"{inspect.getfile(function)}:{at}"


def loaded_from(model: nn.Module, inputs: Callable[..., Any], loss: Callable[..., Any]) -> LoadedModel:
    recipe = recipes.FunctionRecipe(lambda weights: model, inputs, {}, loss=loss)
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    flat = FlatModule(model, flatten_inputs(model, inputs()))
    return LoadedModel(recipe, flat, flat.example.names, {}, {}, Snapshot(model), trained=names)


def made(name: str) -> tuple[TrainingStep, tuple[torch.Tensor, ...]]:
    inputs = getattr(trained, f"{name}_inputs")
    loaded = loaded_from(getattr(trained, name)(), inputs, getattr(trained, f"{name}_loss", None))  # type: ignore[arg-type]
    given = loaded.module.example.tensors
    return training_step.make(loaded, given), given


def test_a_step_computes_the_gradients_that_autograd_computes() -> None:
    step, inputs = made("net")
    found = step.result(inputs)
    loss = trained.net_loss({"output": step.module.model(*inputs)}, {"x": inputs[0]})
    names, parameters = zip(*step.module.model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    assert torch.equal(found.loss, loss)
    assert found.gradients.keys() == expected.keys()
    assert all(torch.equal(found.gradients[name], expected[name]) for name in expected)
    assert all(parameter.grad is None for parameter in step.trained.values())


@pytest.mark.parametrize(("name", "message"), [
    ("lossless", r"the recipe has no loss\(\)"),
    ("unreduced", r"loss\(\) returns a Tensor of shape \[2, 4\]"),
    ("raising", r"loss\(\) fails: KeyError: 'logits' .*trained\.py:\d+.*the outputs are output"),
    ("frozen", "no parameter that requires gradients"),
])  # fmt: skip
def test_a_step_that_cannot_be_taken_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        made(name)
    assert caught.value.remedy


def test_a_loss_must_take_two_arguments(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def net(): ...\ndef net_inputs(): ...\ndef net_loss(outputs): ...\n")
    with pytest.raises(RecipeError, match=r"loss\(\) cannot be called as loss\(outputs, inputs\)"):
        recipes.load(recipes.find(f"{file}:net"))


def test_only_parameters_that_the_recipe_trains_get_gradients() -> None:
    model = trained.net()
    model.get_submodule("head").requires_grad_(False)
    loaded = loaded_from(model, trained.net_inputs, trained.net_loss)
    model.requires_grad_(False)  # as loading does
    inputs = loaded.module.example.tensors
    found = training_step.make(loaded, inputs).result(inputs)
    assert found.gradients.keys() == {name for name, _ in model.named_parameters() if not name.startswith("head")}


def test_random_numbers_are_noticed_and_those_of_float64_agree() -> None:
    for name, random in (("net", False), ("dropping", True)):
        expected = training_step.expect(*made(name))
        assert (expected.random, expected.notes) == (random, ())
        assert expected.reference is not None
        expected.require(expected.eager)


@pytest.mark.parametrize("what", ["loss", "blocks.0.first"])
def test_a_step_that_computes_something_else_is_refused(what: str) -> None:
    expected = training_step.expect(*made("net"))
    loss, gradients = expected.eager.loss, dict(expected.eager.gradients)
    if what == "loss":
        loss = loss * 1.01
    else:
        gradients[what] = gradients[what] * 1.01
    with pytest.raises(ExportError, match=f"its step is wrong, so it was not timed: .*{what}"):
        expected.require(training_step.Result(loss, gradients))
    del gradients["head.bias"]
    with pytest.raises(ExportError, match=r"a gradient of head\.bias"):
        expected.require(training_step.Result(expected.eager.loss, gradients))


def test_an_expected_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    expected = training_step.expect(*made("net"))
    expected.save(tmp_path / "expected.pt")
    again = Expected.read(tmp_path / "expected.pt")
    assert torch.equal(again.eager.loss, expected.eager.loss)
    assert again.eager.gradients.keys() == expected.eager.gradients.keys()


def test_each_eager_operator_goes_to_the_line_that_it_computes_or_differentiates() -> None:
    step, inputs = made("net")
    found = training.Eager(step, "cpu").record(inputs, 1)
    product, scores = place_of(trained.Block.forward, "self.first @"), place_of(trained.Net.forward, "self.head")
    loss = place_of(trained.net_loss, "cross_entropy")
    where = [(one.name, one.origins[0].module, one.origins[0].place, one.backward) for one in found.steps]
    products = [one[1:] for one in where if one[0] == "aten::mm"]
    forward = [(f"blocks.{index}", product, False) for index in (0, 1, 2) for _ in range(2)]
    # Two for each product: the gradients of its two factors.
    backward = [("head", scores, True)] * 2 + [(one, product, True) for one, _, _ in forward[::-1] for _ in range(2)]
    assert products == forward + backward
    assert ("aten::nll_loss_backward", "", loss, True) in where
    assert ("aten::addmm", "head", scores, False) in where
    norms = [one[1] for one in where if one[0] == "aten::native_layer_norm_backward"]
    assert norms == ["blocks.2.norm", "blocks.1.norm", "blocks.0.norm"]
    assert [one[3] for one in where] == sorted(one[3] for one in where)


# torch.compile reads that attribute, and hides this warning unless warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("form", FORMS[1:])
def test_each_kernel_of_a_compiled_step_goes_to_the_lines_that_it_computes_or_differentiates(form: str) -> None:
    torch.compiler.reset()
    step, inputs = made("net")
    expected = training_step.expect(*made("net"))
    ran = training_graphs.compiled(lambda: replace(step, form=form), inputs, expected, "cpu")
    found = ran.record(inputs, 10)  # so that one that the machine interrupts does not count
    product = place_of(trained.Block.forward, "self.first @")
    products = [one for one in found.steps if one.name in ("aten::mm", "aten::addmm")]
    where = [(one.origins[0].module, one.backward) for one in products if one.origins[0].place == product]
    assert sorted(set(where)) == [(f"blocks.{index}", backward) for index in range(3) for backward in (False, True)]
    loss = place_of(trained.net_loss, "cross_entropy")
    own = {one.backward for one in found.steps if any(origin.place == loss for origin in one.origins)}
    assert own == {False, True}
    assert not any(one.fallback for one in found.steps)
    unknown = sum(one.duration_us for one in found.steps if not one.origins)
    assert unknown < 0.05 * sum(one.duration_us for one in found.steps)


def test_dropout_is_compared_by_the_same_random_numbers_and_recorded() -> None:
    torch.compiler.reset()
    step, inputs = made("dropping")
    expected = training_step.expect(*made("dropping"))
    ran = training_graphs.compiled(lambda: replace(step, form="train:whole"), inputs, expected, "cpu")
    line = place_of(trained.Net.forward, "self.dropout")
    assert any(origin.place == line for one in ran.record(inputs, 1).steps for origin in one.origins)


def test_a_kernel_is_divided_by_the_bytes_of_its_own_nodes() -> None:
    works = (Work("", "aten::mm", "a", "m.py:1", 1e9, 1e6), Work("", "aten::add", "b", "m.py:2", 0.0, 1e6))
    model = attribution.Model(works, (), Peaks(1e9, {"fp32": 1e9}))
    origins = (Origin("a", "m.py:1", bytes=1e6), Origin("b", "m.py:2", bytes=3e6))
    spent = attribution.spend(model, Steps((Step("fused", 0.0, 400.0, origins=origins, backward=True),), 400.0), 0.4)
    assert spent.ms[("a", "m.py:1")] == pytest.approx(0.1)
    assert spent.backward_ms[("b", "m.py:2")] == pytest.approx(0.3)
    (slow, fast) = attribution.times(attribution.lines(model, [spent]), spent, model.peaks, "fp32")
    assert (slow.backward_ms, fast.backward_ms) == (pytest.approx(0.3), pytest.approx(0.1))


def test_the_slow_line_is_first_in_eager_and_compiled(run: Run) -> None:
    _, place = run("trained:net")
    found, steps = profile_training.run(place, Asked(("train:whole",), 1.0, 300.0), lambda step: None)
    assert found.train
    assert [one.name for one in found.variants] == list(steps) == ["train", "train:whole"]
    for one in found.variants:
        assert not one.reason
        first = found.lines[one.times[0].line]
        assert (first.module, first.place) == (SLOW, place_of(trained.Block.forward, "self.first @"))
        assert 0 < one.times[0].backward_ms < one.times[0].ms
        assert one.total == pytest.approx(1.0, abs=0.02)
        assert one.elsewhere_ms < 0.05 * one.latency_ms
        # Two products, and two for the gradients of each.
        assert first.flop == 2 * 3 * 2 * trained.ROWS * trained.WIDTH * trained.INNER


def test_unknown_forms_and_models_with_state_are_refused(run: Run, cli: Cli) -> None:
    _, place = run("stateful:counter", bench=False)
    done = cli("profile", place, "--train")
    assert done.code == 2
    assert "keeps state" in done.err
    done = cli("profile", place, "train:other", "--train")
    assert done.code == 2
    assert "choose from train, train:model, train:apart, train:whole" in done.err
