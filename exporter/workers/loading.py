"""Load a model as its job specifies, and find its contract by trying it at several sizes.

This file is long because loading, probing and the search for state are one sequence; each step needs the one before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from exporter.core import contract, inference, memory, probing, source_lines
from exporter.core.contract_records import STATE, Contract, KeptState, StateTensor, TensorSpec
from exporter.core.errors import ExportError, RecipeError
from exporter.core.expressions import Expression, is_combined
from exporter.core.size_range import Range
from exporter.evidence import eager
from exporter.model import checkpoint, differentiation, examples, flattening, ranges, recipes
from exporter.model.differentiation import Recording
from exporter.model.state import first_call, snapshot
from exporter.model.state import stateful as states
from exporter.model.state.snapshot import Place, Snapshot
from exporter.model.state.stateful import State, StatefulModule
from exporter.model.tensors import Tensors
from exporter.model.torchscript import interpreter
from exporter.workers import forkserver
from exporter.workers.messages import Job
from exporter.workers.session import server


@dataclass
class LoadedModel:
    """A recipe with its model, loaded in this process.

    `narrowed` says which promised sizes the model does not accept; `warnings` repeats it. `elsewhere` holds the places
    that changed but are not known state, with the sizes of the call that changed them.
    """

    recipe: recipes.Recipe
    module: flattening.FlatModule
    names: tuple[str, ...]
    base: dict[str, int]
    symbols: dict[str, Range]
    held: Snapshot
    warnings: list[str] = field(default_factory=list)
    narrowed: list[str] = field(default_factory=list)
    elsewhere: dict[Place, dict[str, int]] = field(default_factory=dict)
    tried: list[dict[str, int]] = field(default_factory=list)  # sizes of the calls that determined the contract
    trained: tuple[str, ...] = ()
    written: list[str] = field(default_factory=list)  # inputs that a call changed

    @property
    def state(self) -> State | None:
        """Return the state that the model carries between calls, or None if no call affects a later one."""
        return self.module.state if isinstance(self.module, StatefulModule) and self.module.state.paths else None

    @property
    def kept(self) -> State:
        """Return everything that is known to change between calls, whether it is read or not."""
        return self.module.state if isinstance(self.module, StatefulModule) else State((), ())

    def strange(self) -> list[Place]:
        """Return the places that changed since loading and are not known to change."""
        known = self.kept.known
        return [path for path in self.held.changes() if path not in known]

    def carry(self, state: State, device: str) -> None:
        """Make the module a function of the inputs and of this state, with containers that its own first call makes."""
        if state.made:
            state = replace(state, made=first_call.containers(*self._first_call(device), state.paths))
        self.module = StatefulModule(self.module.model, self.module.example, state, self.module.leave_out).eval()

    def set_up(self, device: str) -> None:
        """Make a first call, and from then on keep the hooks that it registers."""
        self.held = first_call.set_up(*self._first_call(device))

    def _first_call(self, device: str) -> tuple[torch.nn.Module, Snapshot, Callable[[], Tensors]]:
        """Return the model, its snapshot, and a call of it with the example."""
        plain = flattening.FlatModule(self.module.model, self.module.example, self.module.leave_out).eval()
        data = self.inputs(self.base, 0)
        return plain.model, self.held, lambda: eager.run(plain, data, device)

    def arguments(self, found: Contract, sizes: dict[str, int], seed: int) -> Tensors:
        """Return the module's arguments: the inputs, and the initial state if there is one."""
        return self.inputs(sizes, seed) + self.initial(found, sizes)

    def initial(self, found: Contract, sizes: dict[str, int]) -> Tensors:
        """Return the initial state at these sizes, on the CPU."""
        if self.state is None or found.state is None:
            return ()
        specs = [tensor.spec for tensor in found.state.tensors]
        return tuple(t.cpu() for t in self.state.widened([contract.shape_at(spec, sizes) for spec in specs]))

    def inputs(self, sizes: dict[str, int], seed: int) -> Tensors:
        """Return the flattened inputs on the CPU, which depend only on the sizes and the seed.

        Raises RecipeError if they differ from the example in more than tensor sizes.
        """
        flat, example = _flat_inputs(self.recipe, self.module.model, sizes, seed), self.module.example
        if different := flat.difference(example):
            raise RecipeError(
                f"inputs() at {probing.describe(sizes)} differs from the example in more than the sizes of tensors: in "
                f"{different}",
                "only dimensions of tensors may change with a size; everything else must be constant",
            )
        return flat.tensors

    def run(self, sizes: dict[str, int], device: str) -> tuple[tuple[str, ...], Tensors]:
        """Make a first call at these sizes. Return names and values of its outputs and of the state after it.

        An output with the name of an input is renamed to `output.NAME`.
        """
        flat = _flat_inputs(self.recipe, self.module.model, sizes, 0)
        with torch.no_grad(), eager.naming(probing.describe(sizes), self.module.model):
            known = None
            while known is not differentiation.needed(self.module.model):  # after a call that showed it, begin anew
                known = differentiation.needed(self.module.model)
                copies = [t.to(device, copy=True) for t in flat.tensors]
                args, kwargs = flat.rebuild(copies)
                before = [copy._version for copy in copies]  # which counts writes, except those through NumPy or .data
                self.held.restore()
                output = self.module.answer(*args, **kwargs)
                after = [copy._version for copy in copies]
            self._warn_of_writes([flat.names[i] for i, now in enumerate(after) if now != before[i]])
            flattening.require_named(output, self.module.leave_out)
            names, tensors = flattening.output_leaves(output, self.module.leave_out)
        names = tuple(f"output.{name}" if name in self.names else name for name in names)
        if self.state is not None:
            names, tensors = names + self.state.names, tensors + self.state.now(self.module.model)
        if sizes not in self.tried:
            self.tried.append(dict(sizes))
        for path in self.strange():
            self.elsewhere.setdefault(path, dict(sizes))
        self.held.restore()
        return names, tensors

    def _warn_of_writes(self, names: Sequence[str]) -> None:
        """Warn of inputs that a call changes: artifacts that copy an input do not."""
        if new := [name for name in names if name not in self.written]:
            self.written += new
            self.warnings.append(
                f"the model writes to its input{'s' * (len(new) > 1)} {', '.join(new)}: an artifact may leave the "
                "caller's tensor as it is, and inputs that share memory lead to other results"
            )


def _flat_inputs(
    recipe: recipes.Recipe, model: torch.nn.Module, sizes: dict[str, int], seed: int
) -> flattening.FlatInputs:
    torch.manual_seed(seed)
    try:
        inputs = recipe.inputs(**sizes)
        forkserver.leave_if_copied()
    except RecipeError:
        raise
    except Exception as error:
        if own := source_lines.own(error):
            raise ExportError(own, blame=source_lines.blame(error)) from error
        raise RecipeError(
            f"inputs() fails at {probing.describe(sizes)}: {type(error).__name__}: {error}", "fix the recipe"
        ) from error
    return flattening.flatten_inputs(model, inputs)


# The model that this process, or the one that it was forked from, has loaded for the jobs forked from it.
_held: list[tuple[Job, LoadedModel]] = []


def hold(job: Job) -> None:
    """Load recipe and model for the jobs that will be forked from this process."""
    _held[:] = [(job, load_model(job))]


def load_model(job: Job) -> LoadedModel:
    """Return the job's recipe and model, in eval mode and on the job's device. Uses a held model if one matches.

    Raises RecipeError, or ExportError with the place in the model's code, if the recipe fails.
    """
    server.configure(job.options)
    for held, loaded in _held:
        if replace(held, options=job.options) == job and held.options.device == job.options.device:
            return _as_prepared(loaded, job)
    recipe = recipes.load(job.source)
    forkserver.leave_if_copied()
    named = job.source.dims if job.source.place != "saved" else ()  # a saved program names its own
    if not named:
        _choose_sizes(recipe, job)  # report wrong sizes before the slow load
    torch.manual_seed(job.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replaced = job.source.checkpoint and job.source.place != "saved"  # a saved program has no random weights
        model = _load_weights(recipe, "random" if replaced else job.weights)
    messages = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    if job.weights == "pretrained" and not getattr(recipe, "chooses_weights", True):
        messages.append("--weights pretrained has no effect: the recipe's function makes its own weights")
    if job.source.checkpoint:
        messages += checkpoint.load_into(model, job.source.checkpoint, job.source.allow_partial)
    model = model.eval().to(job.options.device)
    trained = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    snapshot.detach(model)
    if named:
        recipe = examples.with_dims(recipe, model, named)
    base, symbols = _choose_sizes(recipe, job)
    example = _flat_inputs(recipe, model, base, 0)
    flat = flattening.FlatModule(model, example, job.source.leave_out).eval()
    found = LoadedModel(recipe, flat, example.names, base, symbols, Snapshot(model), messages, trained=trained)
    return _as_prepared(found, job)


def _as_prepared(loaded: LoadedModel, job: Job) -> LoadedModel:
    """Return the model with what preparing found, if it has run: what must be recorded for gradients, and the state."""
    if job.recording_file.is_file():
        differentiation.note(loaded.module.model, Recording[job.recording_file.read_text()])
    if job.state_file.is_file():
        interpret(loaded.module.model)
        state = states.load(job.state_file)
        if state.hooked:
            loaded.set_up(job.options.device)
        loaded.carry(state, job.options.device)
    return loaded


def interpret(model: torch.nn.Module) -> list[interpreter.Interpreter]:
    """Run TorchScript programs that keep state node by node, so that the state can be taken out. Return them."""
    programs = [m for m in model.modules() if isinstance(m, interpreter.Interpreter) and m.runs_program]
    for program in programs:
        program.interpret()
    return programs


def _choose_sizes(recipe: recipes.Recipe, job: Job) -> tuple[dict[str, int], dict[str, Range]]:
    return probing.choose_sizes(
        recipes.example_sizes(recipe.inputs), recipes.ranges(recipe), job.sizes, job.ranges, job.dynamic
    )


def _load_weights(recipe: recipes.Recipe, weights: str) -> torch.nn.Module:
    try:
        model = recipe.load(weights)
        forkserver.leave_if_copied()
    except RecipeError:
        raise
    except Exception as error:
        if own := source_lines.own(error):
            raise ExportError(own, blame=source_lines.blame(error)) from error
        remedy = (
            "give --weights random, or fetch the weights first"
            if weights == "pretrained"
            else "fix the recipe, or install what it imports"
        )
        raise RecipeError(f"loading the model fails: {source_lines.named(error)}", remedy) from error
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"the recipe's model is of type {type(model).__name__}", "return a torch.nn.Module")
    return interpreter.taken_over(model)


def _kept_state(job: Job, state: State, specs: Sequence[TensorSpec]) -> KeptState:
    """Return the state's entry in a contract. Raises ExportError for a size that is unknown before the first call."""
    for spec in specs:
        if any(map(is_combined, spec.shape)):
            raise ExportError(f"{spec.name} has a size that the inputs' sizes do not determine", states.REMEDY)
    shapes = zip(specs, state.initial, strict=True)
    return KeptState(
        "outside" if job.state == "inputs" else "inside",
        tuple(
            StateTensor(spec.name.removeprefix(STATE), spec.dtype, spec.shape, states.recorded(initial, spec.shape))
            for spec, initial in shapes
        ),
    )


def _remembered(probe: Callable[[dict[str, int]], Any]) -> Callable[[dict[str, int]], Any]:
    """Cache the probe's results by sizes. A cached ExportError is raised again."""
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


def _taken(loaded: LoadedModel, name: str, bounds: Range, probe: Callable[[dict[str, int]], Any]) -> Range:
    """Return the part of a promised range that the model accepts, with a warning if that is not all of it.

    If no rule separates accepted sizes from refused ones, the range stays as it is, and callers get the model's errors.
    """
    base, raised = loaded.base[name], []

    def takes(size: int) -> bool:
        try:
            probe({**loaded.base, name: size})
        except ExportError as error:
            if memory.ran_out(error.__cause__):
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


def _idle(name: str, inputs: Sequence[TensorSpec]) -> RecipeError:
    """Return the error for a size that the inputs' dimensions do not determine."""
    dims = [dim for spec in inputs for dim in spec.shape if isinstance(dim, str)]
    if sums := [dim for dim in dims if name in Expression.parse(dim).names]:
        return RecipeError(
            f"no input dimension tells {name} from the other sizes in {sums[0]}",
            f"make {sums[0]} one size of the recipe, or use {name} in another dimension too",
        )
    unknown = [f"{spec.name} dim {axis}" for spec in inputs for axis, dim in enumerate(spec.shape) if dim is None]
    if unknown:
        return RecipeError(
            f"no input dimension tells {name}: {unknown[0]} depends on sizes in a way that no contract can express, "
            "such as a product",
            f"give {unknown[0]} one size of its own in the recipe, or split it into one dimension for each size",
        )
    return RecipeError(
        f"no input dimension depends on {name}", f"use {name} in the recipe's inputs, or remove it from its sizes"
    )


def find_contract(job: Job, loaded: LoadedModel) -> Contract:
    """Return the contract, found by trying the model at several sizes.

    Raises RecipeError if no input dimension depends on a symbol, and ExportError if the model fails.
    """

    def probe(sizes: dict[str, int]) -> Any:
        return flattening.specs(loaded.names, loaded.inputs(sizes, 0))

    @_remembered
    def probe_outputs(sizes: dict[str, int]) -> Any:
        return flattening.specs(*loaded.run(sizes, job.options.device))

    for name, bounds in loaded.symbols.items():
        loaded.symbols[name] = _taken(loaded, name, bounds, probe_outputs)
    loaded.warnings += loaded.narrowed
    inputs = inference.probe_shapes(probe, loaded.base, loaded.symbols, to_the_ends=True)
    outputs = inference.probe_shapes(probe_outputs, loaded.base, loaded.symbols)
    count = len(loaded.state.paths) if loaded.state else 0
    outputs, carried = outputs[: len(outputs) - count], outputs[len(outputs) - count :]
    kept = _kept_state(job, loaded.state, carried) if loaded.state else None
    loaded.warnings += [
        f"the size of {spec.name} dim {axis} changes in a way that no contract can express; calls do not check it"
        for spec in (*inputs, *outputs)
        for axis, dim in enumerate(spec.shape)
        if dim is None
    ]
    if idle := [name for name in loaded.symbols if name not in contract.told(inputs)]:
        raise _idle(idle[0], inputs)
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
