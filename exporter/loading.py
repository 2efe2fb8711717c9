"""A model loaded as a job says, and the contract that trying it at several sizes shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from exporter import (
    checkpoint,
    contract,
    eager,
    examples,
    flattening,
    interpreter,
    places,
    ranges,
    recipes,
    snapshot,
    zygote,
)
from exporter import state as states
from exporter.errors import ExportError, RecipeError
from exporter.expressions import Expression
from exporter.job import Job
from exporter.records import STATE, Contract, KeptState, Range, StateTensor, TensorSpec
from exporter.session import server
from exporter.snapshot import Snapshot
from exporter.state import State, StatefulModule


@dataclass
class Loaded:
    """A recipe with its model, loaded in this process."""

    recipe: recipes.Recipe
    module: flattening.FlatModule
    names: tuple[str, ...]
    base: dict[str, int]
    symbols: dict[str, Range]
    held: Snapshot
    warnings: list[str] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)  # what the model itself does not take; among the warnings too

    @property
    def state(self) -> State | None:
        """What the model carries from call to call; None where nothing it does shows in a later call."""
        return self.module.state if isinstance(self.module, StatefulModule) and self.module.state.paths else None

    def carry(self, state: State) -> None:
        """Make the module a function of the inputs and of this state."""
        self.module = StatefulModule(self.module.model, self.module.example, state, self.module.leave_out).eval()

    def arguments(self, found: Contract, sizes: dict[str, int], seed: int) -> flattening.Tensors:
        """What the module takes: the inputs, and the initial state where there is one."""
        return self.inputs(sizes, seed) + self.initial(found, sizes)

    def initial(self, found: Contract, sizes: dict[str, int]) -> flattening.Tensors:
        """The initial state at these sizes."""
        if self.state is None or found.state is None:
            return ()
        specs = [tensor.spec for tensor in found.state.tensors]
        return tuple(t.cpu() for t in self.state.widened([contract.shape_at(spec, sizes) for spec in specs]))

    def inputs(self, sizes: dict[str, int], seed: int) -> flattening.Tensors:
        """Flat CPU inputs; the same for the same sizes and seed."""
        flat, example = _flat_inputs(self.recipe, self.module.model, sizes, seed), self.module.example
        if different := flat.difference(example):
            raise RecipeError(
                f"inputs() at {contract.describe(sizes)} differs from the example in more than tensors' sizes: in "
                f"{different}",
                "what changes with a size must be a tensor's dimension; everything else is a constant",
            )
        return flat.tensors

    def run(self, sizes: dict[str, int], device: str) -> tuple[tuple[str, ...], flattening.Tensors]:
        """Names and values of the outputs of a first call at these sizes, and of the state after it.

        An output that bears an input's name gets one of its own.
        """
        flat = _flat_inputs(self.recipe, self.module.model, sizes, 0)
        args, kwargs = flat.rebuild([t.to(device) for t in flat.tensors])
        self.held.restore()
        with torch.no_grad(), eager.naming(contract.describe(sizes)):
            output = self.module.answer(*args, **kwargs)
            flattening.require_named(output, self.module.leave_out)
            names, tensors = flattening.output_leaves(output, self.module.leave_out)
        names = tuple(f"output.{name}" if name in self.names else name for name in names)
        if self.state is not None:
            names, tensors = names + self.state.names, tensors + self.state.now(self.module.model)
        self.held.restore()
        return names, tensors


def _flat_inputs(
    recipe: recipes.Recipe, model: torch.nn.Module, sizes: dict[str, int], seed: int
) -> flattening.FlatInputs:
    torch.manual_seed(seed)
    try:
        inputs = recipe.inputs(**sizes)
        zygote.leave_if_copied()
    except RecipeError:
        raise
    except Exception as error:
        if own := places.own(error):
            raise ExportError(own) from error
        raise RecipeError(
            f"inputs() fails at {contract.describe(sizes)}: {type(error).__name__}: {error}", "mend the recipe"
        ) from error
    return flattening.flatten_inputs(model, inputs)


_held: list[tuple[Job, Loaded]] = []  # what this process, or the one that it was forked from, has loaded for others


def hold(job: Job) -> None:
    """Load recipe and model for the jobs that will be forked from this process."""
    _held[:] = [(job, load_model(job))]


def load_model(job: Job) -> Loaded:
    """Recipe and model as the job says, in eval mode, on its device: those that are held, or else load them.

    RecipeError when the recipe is at fault.
    """
    server.configure(job.options)
    for held, loaded in _held:
        if replace(held, options=job.options) == job and held.options.device == job.options.device:
            return _as_prepared(loaded, job)
    recipe = recipes.load(job.source)
    zygote.leave_if_copied()
    named = job.source.dims if job.source.place != "saved" else ()  # a saved program has named them itself
    if not named:
        _choose_sizes(recipe, job)  # before the model takes its time
    torch.manual_seed(job.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replaced = job.source.checkpoint and job.source.place != "saved"  # a saved program has no random weights
        model = _load_weights(recipe, "random" if replaced else job.weights)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    if job.weights == "pretrained" and not getattr(recipe, "chooses_weights", True):
        said.append("--weights pretrained changes nothing: the recipe's function makes its own weights")
    if job.source.checkpoint:
        said += checkpoint.load_into(model, job.source.checkpoint, job.source.allow_partial)
    model = model.eval().to(job.options.device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if named:
        recipe = examples.with_dims(recipe, model, named)
    base, symbols = _choose_sizes(recipe, job)
    example = _flat_inputs(recipe, model, base, 0)
    flat = flattening.FlatModule(model, example, job.source.leave_out).eval()
    return _as_prepared(Loaded(recipe, flat, example.names, base, symbols, Snapshot(model), said), job)


def _as_prepared(loaded: Loaded, job: Job) -> Loaded:
    """With the state that preparing has found, where that was and found any."""
    if job.state_file.is_file():
        _interpret(loaded.module.model)
        loaded.carry(states.load(job.state_file))
    return loaded


def _interpret(model: torch.nn.Module) -> list[interpreter.Interpreter]:
    """Let programs of TorchScript that keep a state run where it can be taken out of them; returns them."""
    programs = [m for m in model.modules() if isinstance(m, interpreter.Interpreter) and m.runs_program]
    for program in programs:
        program.interpret()
    return programs


def _follow_programs(loaded: Loaded, step: states.Step) -> None:
    """Where the model is, or holds, TorchScript with a state of its own: run it node by node, so that it can be taken
    out. ExportError where that gives something else than TorchScript does.
    """
    if not any(isinstance(m, interpreter.Interpreter) and m.runs_program for m in loaded.module.model.modules()):
        return
    calls = range(states.CALLS)
    wanted = list(map(step, calls))
    _interpret(loaded.module.model)
    loaded.held = Snapshot(loaded.module.model)  # of what the program's own state was when it was loaded
    if not all(map(states.alike, map(step, calls), wanted)):
        raise ExportError(
            "the state of the TorchScript program cannot be followed: run node by node it gives other outputs",
            "export the module that it was made from",
        )
    loaded.held.restore()


def _choose_sizes(recipe: recipes.Recipe, job: Job) -> tuple[dict[str, int], dict[str, Range]]:
    return contract.choose_sizes(
        recipes.example_sizes(recipe.inputs), recipes.ranges(recipe), job.sizes, job.ranges, job.dynamic
    )


def find_state(job: Job, loaded: Loaded) -> None:
    """Find out what the model carries from call to call, and make its module a function of it.

    ExportError, with names and lines, where it cannot be taken out of the model.
    """
    given = [loaded.inputs(loaded.base, seed) for seed in range(states.CALLS)]
    device = job.options.device
    step = _step(loaded, loaded.module, given, device)
    _follow_programs(loaded, step)
    if not states.changes_anything(loaded.module.model, loaded.held, step):
        return
    searched = _copy_on_cpu(loaded, given) if device != "cpu" else None
    found = states.find(*(searched or (loaded.module.model, loaded.held, step)))
    if found is None:
        return
    loaded.carry(replace(found, initial=tuple(t.to(device) for t in found.initial)))
    if found.dropped:
        loaded.warnings.append(states.unread(loaded.module.model, found))


def _step(
    loaded: Loaded, module: flattening.FlatModule, given: Sequence[flattening.Tensors], device: str
) -> states.Step:
    """Calls of the module, which is loaded's own or a copy of it, with these inputs."""

    def step(number: int) -> flattening.Tensors:
        torch.manual_seed(number)  # what is drawn is no state
        with eager.naming(contract.describe(loaded.base)):
            return eager.run(module, given[number], device)

    return step


def _copy_on_cpu(
    loaded: Loaded, given: Sequence[flattening.Tensors]
) -> tuple[torch.nn.Module, Snapshot, states.Step] | None:
    """A copy of the model in which to search for its state; None where it runs on its own device alone.

    The search gives calls values that they were not made for. An index out of range raises on the CPU; on a GPU it ends
    every later call of the process.
    """
    try:
        model = snapshot.copied(loaded.module.model, "cpu")
        held = Snapshot(model)
        module = flattening.FlatModule(model, loaded.module.example, loaded.module.leave_out).eval()
        step = _step(loaded, module, given, "cpu")
        step(0)
    except Exception:  # whatever a model raises that was made for a GPU
        return None
    return model, held, step


def _load_weights(recipe: recipes.Recipe, weights: str) -> torch.nn.Module:
    try:
        model = recipe.load(weights)
        zygote.leave_if_copied()
    except RecipeError:
        raise
    except Exception as error:
        if own := places.own(error):
            raise ExportError(own) from error
        remedy = (
            "give --weights random, or fetch the weights first"
            if weights == "pretrained"
            else "mend the recipe, or install what it imports"
        )
        raise RecipeError(f"loading the model fails: {places.named(error)}", remedy) from error
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"the recipe's model is of type {type(model).__name__}", "return a torch.nn.Module")
    return interpreter.taken_over(model)


def _kept_state(job: Job, state: State, specs: Sequence[TensorSpec]) -> KeptState:
    """The state as a contract has it. ExportError for a size that no artifact could know before the first call."""
    for spec in specs:
        if None in spec.shape:
            raise ExportError(f"{spec.name} has a size that does not follow from the inputs'", states.REMEDY)
    shapes = zip(specs, state.initial, strict=True)
    return KeptState(
        "outside" if job.state == "inputs" else "inside",
        tuple(
            StateTensor(spec.name.removeprefix(STATE), spec.dtype, spec.shape, states.recorded(initial, spec.shape))
            for spec, initial in shapes
        ),
    )


def _remembered(probe: Callable[[dict[str, int]], Any]) -> Callable[[dict[str, int]], Any]:
    """The probe, which answers the same question once; what it raised is raised again."""
    answers: dict[tuple[tuple[str, int], ...], Any] = {}

    def ask(sizes: dict[str, int]) -> Any:
        key = tuple(sizes.items())
        if key not in answers:
            try:
                answers[key] = probe(sizes)
            except ExportError as error:
                answers[key] = error
        if isinstance(answers[key], ExportError):
            raise answers[key]
        return answers[key]

    return ask


def _taken(loaded: Loaded, name: str, bounds: Range, probe: Callable[[dict[str, int]], Any]) -> Range:
    """What the model itself takes of a promised range, with a warning where that is less.

    Where no rule tells the sizes that it takes from the others, the range is left as it is: it is the caller who will
    hear what the model raises.
    """
    base, raised = loaded.base[name], []

    def takes(size: int) -> bool:
        try:
            probe({**loaded.base, name: size})
        except ExportError as error:
            if _out_of_memory(error):
                raise
            raised.append(error)
            return False
        return True

    if bounds.choices or not takes(base) or ranges.refused(takes, base, bounds) is None:
        return bounds
    found = ranges.taken(takes, base, bounds)
    if found is None or len(found.sizes) < 2:
        return bounds
    loaded.narrowed.append(f"{name} is promised only at {contract.left_of(bounds, found)}: {raised[0]}")
    return found


def _out_of_memory(error: ExportError) -> bool:
    """Whether the machine, not the model, refuses a size."""
    cause = error.__cause__
    return isinstance(cause, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(cause)


def find_contract(job: Job, loaded: Loaded) -> Contract:
    """What the inputs and outputs are like at every size, found by trying some. RecipeError for an idle symbol."""

    def probe(sizes: dict[str, int]) -> Any:
        return flattening.specs(loaded.names, loaded.inputs(sizes, 0))

    @_remembered
    def probe_outputs(sizes: dict[str, int]) -> Any:
        return flattening.specs(*loaded.run(sizes, job.options.device))

    for name, bounds in loaded.symbols.items():
        loaded.symbols[name] = _taken(loaded, name, bounds, probe_outputs)
    loaded.warnings += loaded.narrowed
    inputs = contract.probe_shapes(probe, loaded.base, loaded.symbols, to_the_ends=True)
    outputs = contract.probe_shapes(probe_outputs, loaded.base, loaded.symbols)
    count = len(loaded.state.paths) if loaded.state else 0
    outputs, carried = outputs[: len(outputs) - count], outputs[len(outputs) - count :]
    kept = _kept_state(job, loaded.state, carried) if loaded.state else None
    loaded.warnings += [
        f"{spec.name} dim {axis} moves in no way that a contract can say; its size is not checked on a call"
        for spec in (*inputs, *outputs)
        for axis, dim in enumerate(spec.shape)
        if dim is None
    ]
    used = {Expression.parse(dim).name for spec in inputs for dim in spec.shape if isinstance(dim, str)}
    idle = [name for name in loaded.symbols if name not in used]
    if idle:
        raise RecipeError(
            f"no input's dimension follows {idle[0]}",
            f"use {idle[0]} in the recipe's inputs, or remove it from its sizes",
        )
    found = Contract(
        job.model,
        inputs,
        outputs,
        loaded.symbols,
        device=job.options.device.partition(":")[0],
        torch=torch.__version__.partition("+")[0],
        constants=flattening.constants(loaded.module.example),
        state=kept,
    )
    if job.state == "carry":
        return found
    return replace(found, inputs=inputs + carried, outputs=outputs + carried)
