"""A training step: the forward pass, the recipe's loss and the backward pass, in eager or with a part compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporter.core import source_lines, tolerances
from exporter.core.errors import ExportError, RecipeError, UsageError
from exporter.evidence import parity
from exporter.model import flattening
from exporter.model.flattening import FlatInputs, FlatModule, dtype_name
from exporter.model.tensors import Tensors
from exporter.workers.loading import LoadedModel
from exporter.workers.profile import APART, MODEL, WHOLE

SEEDS = (0, 1)
WRITE = "write loss(outputs, inputs), which returns a tensor with one value"
LOSS = "loss"


class Criterion:
    """The recipe's loss as a function of flat outputs and flat inputs."""

    def __init__(self, loss: Callable[..., Any], names: tuple[str, ...], example: FlatInputs, single: bool) -> None:
        self.loss, self.names, self.example, self.single = loss, names, example, single

    def __call__(self, outputs: Tensors, inputs: Tensors) -> Any:
        """Return what the recipe's loss() returns."""
        args, kwargs = self.example.rebuild(inputs)
        given = kwargs or (args[0] if self.single else args)
        return self.loss(dict(zip(self.names, outputs, strict=True)), given)


class Whole(torch.nn.Module):
    """The model and its loss as one module."""

    def __init__(self, flat: FlatModule, criterion: Criterion) -> None:
        super().__init__()
        self.flat, self.criterion = flat, criterion

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the loss."""
        return self.criterion(self.flat(*inputs), inputs)


WRONG = "report it to PyTorch: torch.compile changes the result of this training step"


@dataclass(frozen=True)
class Result:
    """What a step computes: the loss, and the gradient of each trained parameter that has one, on the CPU."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Expected:
    """Eager's result, and that of float64 if there is one. `random` means that it depends on random numbers."""

    eager: Result
    reference: Result | None
    random: bool
    notes: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        """Write it to a file for another process of the same profile."""
        torch.save(self, path)

    @staticmethod
    def read(path: Path) -> Expected:
        """Read what `save` wrote."""
        found: Expected = torch.load(path, weights_only=False)
        return found

    def require(self, found: Result) -> None:
        """Raise ExportError if the loss or a gradient differs from eager's by more than the precision's tolerance."""
        reference = self.reference or self.eager
        if found.gradients.keys() != self.eager.gradients.keys():
            odd = min(found.gradients.keys() ^ self.eager.gradients.keys())
            raise ExportError(
                f"its step is wrong, so it was not timed: only one of it and eager has a gradient of {odd}", WRONG
            )
        named = [(LOSS, found.loss, self.eager.loss, reference.loss)]
        for name, value in found.gradients.items():
            named.append((f"the gradient of {name}", value, self.eager.gradients[name], reference.gradients[name]))
        for name, value, eager, exact in named:
            dtypes = dtype_name(value.dtype), dtype_name(eager.dtype)
            y, e, r = (one.to(torch.float64).numpy() for one in (value, eager, exact))
            verdict = parity.compare(name, y, e, r, tolerances.of_dtype(dtypes[1]), dtypes)
            if verdict.verdict == "FAIL":
                raise ExportError(
                    f"its step is wrong, so it was not timed: {name} is {verdict.reason}",
                    WRONG,
                )


@dataclass
class TrainingStep:
    """A step on a model in train mode. `watching` is entered around what runs outside compiled code."""

    module: FlatModule
    criterion: Criterion
    trained: dict[str, torch.nn.Parameter]
    form: str = ""
    watching: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    in_backward: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.whole = _compiled(Whole(self.module, self.criterion)) if self.form == WHOLE else None
        self.forward = _compiled(self.module) if self.form in (MODEL, APART) else self.module
        self.judge = _compiled(self.criterion.__call__) if self.form == APART else self.criterion

    def loss_of(self, inputs: Tensors) -> torch.Tensor:
        """Run the forward pass and return the loss."""
        found: torch.Tensor
        if self.whole is not None:
            found = self.whole(*inputs)
            return found
        outputs = self.forward(*inputs)
        with self.watching() if self.judge is self.criterion else contextlib.nullcontext():
            found = self.judge(outputs, inputs)
        return found

    def run(self, inputs: Tensors) -> Tensors:
        """Run the step. The gradients stay in the parameters until `reset`."""
        loss = self.loss_of(inputs)
        self.in_backward = True
        try:
            loss.backward()
        finally:
            self.in_backward = False
        return (loss,)

    def again(self, inputs: Tensors) -> Tensors:
        """Remove the gradients and run the step."""
        self.reset()
        return self.run(inputs)

    def reset(self) -> None:
        """Remove the gradients."""
        for parameter in self.trained.values():
            parameter.grad = None

    def result(self, inputs: Tensors, seed: int = SEEDS[0]) -> Result:
        """Run the step with seeded random numbers and return what it computes."""
        self.reset()
        torch.manual_seed(seed)
        (loss,) = self.run(inputs)
        found = {name: one.grad.detach().cpu() for name, one in self.trained.items() if one.grad is not None}
        self.reset()
        return Result(loss.detach().cpu(), {name: one.clone() for name, one in found.items()})


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def make(loaded: LoadedModel, inputs: Tensors, form: str = "") -> TrainingStep:
    """Return the step of a model that a job has just loaded. Call it before the model runs.

    Raises RecipeError if the recipe has no loss() or it cannot be used, and UsageError if the model trains nothing.
    """
    loss = getattr(loaded.recipe, "loss", None)
    if loss is None:
        remedy = "write loss(outputs, inputs) in the recipe; a model of a library needs a recipe that loads it"
        raise RecipeError("the recipe has no loss() to train with", remedy)
    module = loaded.module
    known = dict(module.model.named_parameters())
    trained = {name: known[name] for name in loaded.trained if known[name].is_floating_point()}
    if not trained:
        raise UsageError(
            "the model has no parameter that requires gradients",
            "a training step needs one; profile it without --train",
        )
    for parameter in trained.values():
        parameter.requires_grad_(True)
    try:
        module.train()
    except NotImplementedError as error:
        raise UsageError(f"the model has no train mode: {source_lines.message(error)}") from error
    args, kwargs = module.example.rebuild(inputs)
    try:
        with torch.no_grad():
            names = flattening.output_leaves(module.answer(*args, **kwargs), module.leave_out)[0]
    except Exception as error:  # the user's own code
        raise UsageError(
            f"the model does not run in train mode: {source_lines.summary(error)}",
            "export it at sizes at which it trains, such as --size batch=8",
        ) from error
    names = tuple(f"output.{name}" if name in loaded.names else name for name in names)
    single = isinstance(loaded.recipe.inputs(**loaded.base), torch.Tensor)
    criterion = Criterion(loss, names, module.example, single)
    _require_usable(criterion, module, inputs)
    return TrainingStep(module, criterion, trained, form)


def _require_usable(criterion: Criterion, module: FlatModule, inputs: Tensors) -> None:
    """Raise RecipeError if the loss fails or cannot be minimized."""
    outputs = module(*inputs)
    try:
        found = criterion(outputs, inputs)
    except Exception as error:  # the user's own code
        has = f"the outputs are {', '.join(criterion.names)}"
        raise RecipeError(f"loss() fails: {source_lines.summary(error)}; {has}", f"fix it; {WRITE}") from error
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        shape = f" of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else ""
        raise RecipeError(f"loss() returns a {type(found).__name__}{shape}", WRITE)
    if not found.requires_grad:
        raise RecipeError("the value of loss() does not depend on a trained parameter", WRITE)


def expect(step: TrainingStep, inputs: Tensors) -> Expected:
    """Return what eager computes, and what it computes in float64. The model is in float64 afterwards."""
    found = step.result(inputs)
    other = step.result(inputs, SEEDS[1])
    usual = tolerances.of_dtype(dtype_name(found.loss.dtype))
    random = not torch.allclose(found.loss, other.loss, rtol=usual.rtol, atol=usual.atol)
    notes = []
    if idle := len(step.trained) - len(found.gradients):
        notes.append(f"{idle} of {len(step.trained)} trained parameters get no gradient from this loss")
    reference: Result | None = None
    reason = ""
    try:
        step.module.double()
        exact = step.result(tuple(t.double() if t.is_floating_point() else t for t in inputs))
        # In float64, a model may draw other random numbers.
        reference = exact if torch.allclose(exact.loss, found.loss.double(), rtol=1e-2, atol=1e-3) else None
        reason = "" if reference else "it computes another loss in float64"
    except Exception as error:  # the model or the loss may require its own dtype, or too much memory
        reason = source_lines.summary(error)
    if reason:
        notes.append(f"gradients were compared with eager's alone, because float64 fails: {reason}")
    return Expected(found, reference, random, tuple(notes))
