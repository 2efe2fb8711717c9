"""One drawn module: whether a test can judge it, the results of a run, and whether they are right."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

import exporter
from exporter import targets
from exporter.core import causes, probing
from exporter.core.contract_records import STATE
from exporter.core.errors import ContractError
from exporter.core.parity_records import Tolerance
from exporter.core.records import Manifest, VariantRecord
from exporter.core.size_range import Range
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import diagnosis, eager, perturbations
from exporter.evidence import make_golden as goldens
from exporter.model import flattening, recipes
from exporter.model.tensors import Tensors
from exporter.runs import pipeline
from exporter.runs.request import Request
from exporter.workers.session.server import Judge
from fuzz.states import PREFIX

FRESH_SEED = 100  # not in any golden
FRESH_SIZES = 3
STEPS = 4  # consecutive calls of a model with state
LIMIT_S = 60.0  # per call
# For rounding in a sound module.
LOOSE, LOOSE_HALF = (OutputTolerances(Tolerance(*one)) for one in ((1e-2, 1e-3, 2.0), (5e-2, 5e-2, 3.0)))
INTERNAL = re.compile(r"INTERNAL ASSERT|please report a bug|Traceback|object at 0x")  # these help no user
BARE = re.compile(r"\b(?:Attribute|Key|Index|Name|Type)Error\b|INTERNAL")  # raised by torch, not by the model
PATTERN = re.compile(
    r" is fixed at |depends on |was ended by SIG|took longer than"
    r"|carries no state from call to call|this target keeps inside is fixed"
)
LINE = re.compile(r"\.py:\d+")
PLACEHOLDER = re.compile(r"\\{\w+\\}")
SENTENCES = re.compile("|".join(PLACEHOLDER.sub(".*", re.escape(cause.sentence)) for cause in causes.CAUSES))


@dataclass
class Case:
    """A drawn module in its own file."""

    file: Path

    @cached_property
    def recipe(self) -> recipes.Recipe:
        """Return its recipe, loaded as in a run."""
        return recipes.load(recipes.find(f"{self.file}:drawn"))

    @cached_property
    def model(self) -> torch.nn.Module:
        """Return the model itself."""
        return self.recipe.load("random")

    @cached_property
    def symbols(self) -> dict[str, Range]:
        """Return the ranges of its sizes with the drawn steps, even if its recipe does not declare them."""
        steps = getattr(self.recipe, "steps", {})
        return {n: r.within(r.min, r.max, steps.get(n, 1)) for n, r in recipes.ranges(self.recipe).items()}

    @cached_property
    def base(self) -> dict[str, int]:
        """Return the example's sizes."""
        return recipes.example_sizes(self.recipe.inputs)

    def inputs(self, sizes: dict[str, int], seed: int) -> flattening.FlatInputs:
        """Return flat inputs."""
        model = self.model  # loading it uses random numbers too
        torch.manual_seed(seed)
        return flattening.flatten_inputs(model, self.recipe.inputs(**sizes))

    @cached_property
    def module(self) -> flattening.FlatModule:
        """Return the flat model."""
        return flattening.FlatModule(self.model, self.inputs(self.base, 0)).eval()

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the model's own outputs."""
        flat = self.inputs(self.base, 0)
        args, kwargs = flat.rebuild(flat.tensors)
        with torch.no_grad():
            return flattening.output_leaves(copy.deepcopy(self.model)(*args, **kwargs))[0]

    @property
    def plan(self) -> list[tuple[dict[str, int], int]]:
        """Return the sizes and seeds of the golden."""
        return probing.probe_plan(self.base, self.symbols)

    @property
    def fresh(self) -> list[tuple[dict[str, int], int]]:
        """Return sizes and seeds that are not in the golden."""
        known = [sizes for sizes, _ in self.plan]
        every = itertools.product(*(r.sizes for r in self.symbols.values()))
        others = [sizes for one in every if (sizes := dict(zip(self.symbols, one, strict=True))) not in known]
        chosen = others[:: max(len(others) // FRESH_SIZES, 1)][:FRESH_SIZES]
        return [(sizes, FRESH_SEED + i) for i, sizes in enumerate([*chosen, self.base])]

    @cached_property
    def keeps_state(self) -> bool:
        """Return whether a call may affect the next one."""
        return f"self.{PREFIX}" in self.file.read_text()

    def sequence(self, sizes: dict[str, int], seed: int) -> list[Tensors]:
        """Return the inputs of a sequence of calls."""
        return [self.inputs(sizes, 1000 * seed + step).tensors for step in range(STEPS)]

    def calls(self, given: list[Tensors]) -> list[Tensors]:
        """Return the outputs of a model from its initial state, call by call."""
        flat = flattening.FlatModule(copy.deepcopy(self.model), self.module.example).eval()
        return [eager.run(flat, data, "cpu") for data in given]

    def _is_sound_in_sequence(self, given: list[Tensors]) -> bool:
        loose = LOOSE_HALF if _half(given[0]) else LOOSE
        outputs = self.calls(given)
        others = [self.calls([perturbations.perturbed(data, sign) for data in given]) for sign in (1, -1)]
        return all(perturbations.settled(o, a, loose) for other in others for o, a in zip(outputs, other, strict=True))

    def sound(self) -> bool:
        """Return whether eager runs at all these sizes, is deterministic, and does not depend on rounding."""
        if self.keeps_state:
            sequences = (self.sequence(sizes, seed) for sizes, seed in [*self.plan, *self.fresh])
            return all(map(self._is_sound_in_sequence, sequences))
        return all(self._is_sound(self.inputs(sizes, seed).tensors) for sizes, seed in [*self.plan, *self.fresh])

    def _is_sound(self, data: Tensors) -> bool:
        if not eager.is_settled(self.module, data, "cpu", LOOSE_HALF if _half(data) else LOOSE, LIMIT_S):
            return False
        once, again = eager.run(self.module, data, "cpu"), eager.run(self.module, data, "cpu")
        return all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def _half(data: Tensors) -> bool:
    return any(t.is_floating_point() and t.element_size() == 2 for t in data)


def run(case: Case, names: str, out: Path) -> tuple[Manifest, Path]:
    """Run the whole pipeline without timing; for every second module, the caller passes the state."""
    state = ("carry", "inputs")[len(case.file.read_text()) % 2]
    variants = tuple(targets.parse(names))
    source = recipes.find(f"{case.file}:drawn")
    return pipeline.run(Request("drawn", source, variants, out, state=state, bench=False, threads=1, timeout=300.0))


def untrue(case: Case, manifest: Manifest, place: Path) -> Iterator[str]:
    """Yield what is wrong with a run: artifacts that passed but should not have, and refusals without information."""
    for name, bounds in manifest.contract.symbols.items() if manifest.contract else ():
        if left_out := [size for size in case.symbols[name].sizes if not bounds.allows(size)]:
            yield f"{name} is {bounds}, which excludes {left_out[0]}, but eager accepts it"
    for row in manifest.variants:
        if row.status == "passed":
            yield from (f"{row.name} passed and is wrong: {what}" for what in _wrong(case, row, manifest, place))
        elif not row.reason or not row.stage or INTERNAL.search(row.reason):
            yield f"{row.name} is refused at {row.stage or 'no stage'} without a cause: {row.reason}"


def unnamed(manifest: Manifest) -> list[str]:
    """Return the refusals whose reason has no known cause, no known pattern and no line of the model."""
    return [f"{row.name}: {row.reason}" for row in manifest.variants if row.status == "failed" and not _named(row)]


def _named(row: VariantRecord) -> bool:
    known = SENTENCES.match(row.reason) or PATTERN.search(row.reason)
    return bool(known or (LINE.search(row.reason) and not BARE.search(row.reason)))


def _wrong(case: Case, row: VariantRecord, manifest: Manifest, place: Path) -> Iterator[str]:
    """Describe how the artifact differs from eager outside the golden."""
    assert row.artifact is not None
    assert manifest.golden is not None
    tolerance = OutputTolerances(manifest.golden.tolerance, manifest.golden.tolerances)
    artifact = exporter.open_artifact(place / row.artifact.path, threads=1)
    names = tuple(spec.name for spec in artifact.contract.outputs if not spec.name.startswith(STATE))
    if names != (expected := case.output_names()):
        yield f"its outputs are {names}, eager's {expected}"
        return
    if case.keeps_state or artifact.contract.state is not None:
        yield from _wrong_in_sequence(case, artifact)
        return
    plan = goldens.Plan(case.fresh, case.symbols)
    made, _ = goldens.make(case.module, lambda *at: case.inputs(*at).tensors, plan, tolerance, "cpu")
    judge = Judge(made, names)
    for one in made.cases:
        outside = diagnosis.outside(one.record.sizes, artifact.contract)
        try:
            judged = judge.compare(tuple(artifact(*one.inputs).values()), one)
        except ContractError as error:
            if not outside:
                yield f"at {one.name} it is refused: {error}"
        except Exception as error:  # whatever an artifact raises is a finding
            yield f"at {one.name} it raises {type(error).__name__}: {str(error)[:300]}"
        else:
            yield from [f"at {one.name} it is taken: {outside}, which the contract does not allow"] if outside else []
            yield from (f"{o.output} at {one.name}: {o.reason}" for o in judged if o.verdict == "FAIL")


def _wrong_in_sequence(case: Case, artifact: exporter.Artifact) -> Iterator[str]:
    """Describe how an artifact of a model with state differs from the model over a sequence of calls."""
    stream = artifact.stream() if artifact.contract.state else artifact
    for sizes, seed in case.fresh:
        given = case.sequence(sizes, seed)
        name = probing.describe(sizes)
        outside = diagnosis.outside(sizes, artifact.contract)
        loose = LOOSE_HALF if _half(given[0]) else LOOSE
        stream.reset()
        for step, (inputs, wanted) in enumerate(zip(given, case.calls(given), strict=True), 1):
            try:
                got = tuple(stream(*inputs).values())
            except ContractError as error:
                yield from [] if outside else [f"at {name} it is refused: {error}"]
                break
            except Exception as error:  # whatever an artifact raises is a finding
                yield f"at {name} call {step} it raises {type(error).__name__}: {str(error)[:300]}"
                break
            if not perturbations.settled(got, wanted, loose):
                yield f"at {name} it differs at call {step}"
                break
