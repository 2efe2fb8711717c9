"""The jobs that run in children: one function each, called in its own process with a socket to the parent.

This file is long because jobs are named by this module; each is a short sequence of calls into other packages.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from exporter import targets
from exporter.core import contract, precisions, probing, source_lines, time_limit, tolerances
from exporter.core.contract_records import Contract
from exporter.core.errors import ExportError, RecipeError, UsageError
from exporter.core.expressions import Expression
from exporter.core.parity_records import SizeLimit, Tolerance, Warned
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.core.records import EAGER
from exporter.core.size_range import Range, Sizes
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import eager as eager_calls
from exporter.evidence import golden, make_golden, narrowing, perturbations, samples, sequences
from exporter.evidence.diagnosis import outside
from exporter.evidence.findings import Findings
from exporter.model import (
    capture,
    custom_ops,
    differentiation,
    flattening,
    kept_layers,
    precision,
    recipes,
    small_weights,
    value_checks,
    widening,
)
from exporter.model.no_program import NoProgram
from exporter.model.state import data_writes
from exporter.model.state import stateful as states
from exporter.model.state.snapshot import Place, Snapshot
from exporter.model.state.stateful import StatefulModule
from exporter.model.tensors import Tensors, parts, saved
from exporter.model.torchscript.interpreter import Interpreter
from exporter.workers import artifact_cache, keeping
from exporter.workers.children import BACKGROUND, stand_back
from exporter.workers.forkserver import hear, tell
from exporter.workers.loading import LoadedModel, load_model
from exporter.workers.messages import GoldenSettings, Job, Prepared
from exporter.workers.reference_cache import References
from exporter.workers.session import server

SAMPLES = range(7000, 7064)  # seeds of the inputs used for calibration; the golden uses none of them
FEWEST, ENOUGH = 8, 16384  # least number of calibration inputs; values after which more inputs add little


def prepare(channel: socket.socket, job: Job, capture_program: bool, making: GoldenSettings) -> Findings:
    """Find the contract, capture the program that all exports share, and make the golden. Return its findings.

    A `Prepared` is sent as soon as the program is captured, so that exports can start before the golden is made.
    """
    loaded = load_model(job)
    registered = custom_ops.registered()
    found = _find(job, loaded)
    when_called = custom_ops.registered() - registered
    if isinstance(loaded.module, StatefulModule) and not making.plan:
        states.save(loaded.module.state, job.state_file)
    points = probing.sweep_points(loaded.base, loaded.symbols, job.sweep)
    entries = probing.entry_sizes(job.options.entries)
    probing.check_entries(entries, loaded.symbols)
    if entries and contract.keeps_state(found):
        raise UsageError(
            "--entries would give each entry of a package a state of its own, and the model keeps state between calls",
            "give --state inputs too, or leave out --entries",
        )
    own = probing.entry_points(entries, loaded.base, loaded.symbols)
    tell(channel, "loaded", None)
    weights = _weights_used(job.weights, loaded)
    published = loaded.module.model if weights == "pretrained" else None
    sizes = probing.capture_sizes(loaded.base, loaded.symbols)
    started = time.perf_counter()
    captured = _capture(job, loaded, found, sizes) if capture_program else _Captures(sizes)
    plan = making.plan or _planned(loaded, found, (*points.values(), *own), captured)
    prepared = Prepared(
        contract=found,
        base=loaded.base,
        capture_sizes=captured.sizes,
        weights=weights,
        parameters=sum(p.numel() for p in loaded.module.parameters()),
        weight_bytes=_weight_bytes(loaded.module),
        capture_s=time.perf_counter() - started if capture_program else 0.0,
        warnings=tuple(dict.fromkeys((*loaded.warnings, *value_checks.note(tuple(captured.checks))))),
        limits=tuple(captured.limits),
        ops=tuple(captured.ops),
        libraries=tuple(sorted(when_called)),
        points=points,
        origin=str(getattr(published, "exporter_origin", "")),
        licence=str(getattr(published, "exporter_licence", "")),
        narrowings=tuple(captured.narrowings),
        plan=plan,
        violations=tuple(captured.violations),
    )
    tell(channel, "prepared", prepared)
    widening.allow(int(hear(channel)))  # the parent sends the bytes allowed for float64 weights when the turn comes
    stand_back(BACKGROUND)  # the exports waited for this job; from here on they run beside it
    usual = tolerances.of_outputs({spec.dtype for spec in found.outputs}, making.tolerance)
    others = {name: making.tolerance.over(tolerances.BY_PRECISION[precisions.base(name)]) for name in making.precisions}
    make = _make_sequences if loaded.state else _make_cases
    kept = job.options.keep_float
    unusual, nonfinite = making.values != "usual", making.values == "all"
    planned = make_golden.Plan(plan, loaded.symbols, points, unusual, nonfinite, kept)
    made, findings = make(job, loaded, found, planned, usual, others)
    golden.save(made, making.path)
    return replace(findings, tolerances={**findings.tolerances, **others})


def _planned(
    loaded: LoadedModel, found: Contract, points: Sequence[Sizes], captured: _Captures
) -> tuple[tuple[Sizes, int], ...]:
    """Return the sizes and seeds of the golden: at the bounds of every range, and where a program does not hold."""
    plan = probing.probe_plan(loaded.base, loaded.symbols, points)
    for narrowed in captured.narrowings:
        symbols = contract.narrow(found, [narrowed]).symbols
        plan += [case for case in probing.probe_plan(loaded.base, symbols) if case not in plan]
    if not captured.programs:  # whose conditions would tell sizes that must differ
        plan += [(sizes, 0) for sizes in probing.equal_sizes(loaded.base, loaded.symbols) if (sizes, 0) not in plan]
    plan += [(sizes, seed) for sizes in captured.violations for seed in (0, 1) if (sizes, seed) not in plan]
    return tuple(plan)


Tolerances = dict[str, Tolerance]  # by precision


def _make_cases(
    job: Job, loaded: LoadedModel, found: Contract, plan: make_golden.Plan, usual: OutputTolerances, others: Tolerances
) -> tuple[golden.Golden, Findings]:
    """Make the golden of a model without state: one call for each case and for each of the recipe's samples."""
    device, references = job.options.device, References(job, found, usual)
    made, findings = make_golden.make(loaded.module, loaded.inputs, plan, usual, device, references)
    own = {one.case: one.inputs for one in _samples(loaded, found)}
    names = [spec.name for spec in found.inputs]
    made, findings = _with_nonfinite(
        made, findings, loaded, plan, lambda: make_golden.nonfinite_of(loaded.module, made, names, device)
    )
    made, findings = make_golden.add_samples(made, findings, loaded.module, own, device)
    _require_known(loaded, made, plan, device, loaded.strange())
    references.keep()
    names = [spec.name for spec in found.outputs]
    metric = samples.evaluate(loaded.recipe, [case.eager for case in golden.samples(made)], names)
    outputs = tuple(spec.dtype for spec in found.outputs)
    others_made, notes = make_golden.in_precisions(made, loaded.module, others, outputs, device, plan.kept)
    return replace(made, precisions=others_made), replace(findings, notes=findings.notes + notes, metric=metric)


def _make_sequences(
    job: Job, loaded: LoadedModel, found: Contract, plan: make_golden.Plan, usual: OutputTolerances, others: Tolerances
) -> tuple[golden.Golden, Findings]:
    """Make the golden of a model with state, whose cases are sequences of calls."""
    assert isinstance(loaded.module, StatefulModule)
    device = job.options.device
    outside = not contract.keeps_state(found)
    calls = sequences.Calls(loaded.module, loaded.held, outside)
    made, findings = sequences.make(calls, loaded.inputs, plan, usual, device)
    own = {one.case: one.inputs for one in _samples(loaded, found)}
    made, findings = sequences.add_samples(made, findings, calls, own, device)
    _require_known(loaded, made, plan, device, calls.strange)
    names = [spec.name for spec in found.inputs]
    made, findings = _with_nonfinite(
        made, findings, loaded, plan, lambda: sequences.nonfinite_of(calls, made, names, device)
    )
    names = [spec.name for spec in found.outputs]
    metric = samples.evaluate(loaded.recipe, [case.eager for case in golden.samples(made)], names)
    outputs = tuple(spec.dtype for spec in found.outputs if not (outside and spec.name in loaded.module.state.names))
    others_made, notes = sequences.in_precisions(made, calls, others, outputs, device, plan.kept)
    return replace(made, precisions=others_made), replace(findings, notes=findings.notes + notes, metric=metric)


def _require_known(
    loaded: LoadedModel, made: golden.Golden, plan: make_golden.Plan, device: str, unknown: Collection[Place]
) -> None:
    """Raise ExportError if the golden's calls changed places that no earlier call changed and a later call reads."""
    if unknown:
        calls = [(case.name, case.inputs[: len(loaded.module.example.names)]) for case in made.cases]
        name, data = calls[0]  # other values of this case were tried too, and not all of them became cases
        changes = perturbations.changed(data) if plan.unusual else {}
        calls += [(f"{name} {change}", changed) for change, changed in changes.items()]
        keeping.require_known(loaded, device, calls)


def _with_nonfinite(
    made: golden.Golden,
    findings: Findings,
    loaded: LoadedModel,
    plan: make_golden.Plan,
    find: Callable[[], tuple[tuple[golden.NonFinite, ...], tuple[str, ...]]],
) -> tuple[golden.Golden, Findings]:
    """Add the cases with NaN and infinity, unless eager is not repeatable or has no float64 reference."""
    if not plan.nonfinite or findings.unsteady or findings.reference != "float64":
        return made, findings
    if any(isinstance(part, Interpreter) and part.has_while for part in loaded.module.modules()):
        note = "NaN and infinity were not tried: the model is TorchScript with a while loop, which might not end"
        return made, replace(findings, notes=(*findings.notes, note))
    nonfinite, notes = find()
    return replace(made, nonfinite=nonfinite), replace(findings, notes=findings.notes + notes)


def _samples(loaded: LoadedModel, found: Contract) -> list[samples.Sample]:
    """Return the recipe's samples. For a model with state they are the calls of one sequence from its initial state.

    Raises RecipeError if the samples differ in a size that the state's shape depends on.
    """
    alone = replace(found, inputs=found.inputs[: len(loaded.names)], state=None)
    given = samples.read(loaded.recipe, loaded.module.example, loaded.module.model, alone)
    for tensor in found.state.tensors if found.state else ():
        for dim in tensor.shape:
            symbols = Expression.parse(dim).names if isinstance(dim, str) else ()
            if len({tuple(one.sizes.get(symbol) for symbol in symbols) for one in given}) > 1:
                raise RecipeError(
                    f"samples() are the calls of one sequence, but the size {dim} of {tensor.spec.name} differs "
                    "between them",
                    f"give samples with the same {' and '.join(symbols)}",
                )
    return given


def measure(channel: socket.socket, job: Job, outputs: Path, names: tuple[str, ...]) -> float | None:
    """Return the recipe's metric for the outputs that a session wrote to the file `outputs`."""
    server.configure(job.options)
    return samples.evaluate(recipes.load(job.source), [tuple(one) for one in torch.load(outputs)], names)


def _weight_bytes(module: torch.nn.Module) -> int:
    held = (part for tensor in saved(module) for part in parts(tensor))
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in held}
    return sum(storage.nbytes() for storage in storages.values())


def _weights_used(asked: str, loaded: LoadedModel) -> str:
    """Return which weights were used: what the model reports, or else what follows from the weights asked for."""
    reported: str = getattr(loaded.module.model, "exporter_weights", "")
    chosen = getattr(loaded.recipe, "chooses_weights", True)
    return reported or ("random" if asked == "random" and chosen else "the recipe's")


@dataclass
class _Captures:
    """The results of capturing: the sizes used, the remaining ranges of symbols, and the namespaces of operators."""

    sizes: dict[str, int]
    narrowings: list[contract.Narrowing] = field(default_factory=list)
    limits: dict[SizeLimit, None] = field(default_factory=dict)
    ops: dict[str, None] = field(default_factory=dict)
    checks: dict[str, None] = field(default_factory=dict)  # lines of checks of values that programs leave out
    programs: int = 0
    violations: list[Sizes] = field(default_factory=list)  # sizes at which a program does not or may not hold


def _capture(job: Job, loaded: LoadedModel, found: Contract, sizes: dict[str, int]) -> _Captures:
    """Save the exported programs, or the reason why there is none, for the jobs that need them.

    Returns the ranges that were narrowed, and the operators in the programs that are not torch's own.
    """
    found = contract.as_function(found)
    made = _Captures(sizes)
    name = contract.specialized(found)
    captures = [({name: size}, contract.entry(found, size), job.entry_file(size)) for size in _entries(found)]
    for own, promised, file in captures or [({}, found, job.exported_file)]:
        try:
            captured = _capture_one(job, loaded, promised, own, made)
        except ExportError as error:
            NoProgram(str(error), blame=error.blame).write(file)
            continue
        try:
            torch.export.save(captured.program, file)
        except Exception as error:  # its serializer does not support every node of a graph
            reason = f"torch.export.save: {source_lines.summary(error)}"
            NoProgram(reason, made=True, blame=source_lines.blame(error)).write(file)
        made.ops |= dict.fromkeys(custom_ops.of_exported(captured.program))
        made.programs += 1
    return made


def _capture_one(
    job: Job, loaded: LoadedModel, promised: Contract, own: dict[str, int], made: _Captures
) -> capture.Captured:
    """Capture one program at multiples of the steps that torch.export requires. `own` is the size of its entry."""

    def inputs(at: dict[str, int]) -> Tensors:
        return tuple(t.to(job.options.device) for t in loaded.arguments(promised, at, 0))

    base = loaded.base | own
    captured = capture.capture(loaded.module, inputs(made.sizes | own), promised)
    stepped = _stepped(captured, promised, base)
    if any(not stepped[name].allows(size) for name, size in made.sizes.items() if name in stepped):
        made.sizes = probing.capture_sizes(loaded.base, loaded.symbols | stepped)
        captured = capture.capture(loaded.module, inputs(made.sizes | own), promised)
    found = narrowing.find(captured, loaded.module, inputs, base, promised, job.options.device)
    made.limits |= dict.fromkeys(narrowing.limits(captured, found, base))
    made.narrowings += found
    made.checks |= dict.fromkeys(captured.checks)
    narrowed = contract.narrow(promised, (one for one in found if one.of == "graph"))
    for within in (promised, *([narrowed] if narrowed != promised else [])):
        violated = narrowing.violations(captured, loaded.module, inputs, within, base, job.options.device)
        made.violations += [sizes for sizes in violated if sizes not in made.violations]
    return captured


def _stepped(captured: capture.Captured, promised: Contract, base: dict[str, int]) -> dict[str, Range]:
    """Return the ranges with the steps that torch.export requires, for symbols whose example size is a multiple."""
    steps = {name: rule.multiple for name, rule in captured.rules.items() if base[name] % rule.multiple == 0}
    ranges = promised.symbols
    return {name: ranges[name].within(ranges[name].min, ranges[name].max, step) for name, step in steps.items()}


def _entries(promised: Contract) -> tuple[int, ...]:
    """Return the sizes that have an entry each."""
    name = contract.specialized(promised)
    return promised.symbols[name].choices if name else ()


def program(job: Job, target: str) -> tuple[capture.Program, tuple[SizeLimit, ...]]:
    """Return what a target exports from, with a new capture, outside a run; and the sizes that torch.export fixed."""
    prepared = capture_again(job)
    return program_of(job, prepared, target), prepared.limits


def _find(job: Job, loaded: LoadedModel) -> Contract:
    """Find the contract, and note for later jobs what must be recorded for the model's gradients."""
    found = keeping.find(job, loaded)
    if recording := differentiation.needed(loaded.module.model):
        job.recording_file.write_text(recording.name)
    return found


def capture_again(job: Job) -> Prepared:
    """Capture the program outside a run, into the job's folder."""
    loaded = load_model(job)
    found = _find(job, loaded)
    if isinstance(loaded.module, StatefulModule):
        states.save(loaded.module.state, job.state_file)
    captured = _capture(job, loaded, found, probing.capture_sizes(loaded.base, loaded.symbols))
    return Prepared(
        contract=found,
        base=loaded.base,
        capture_sizes=captured.sizes,
        weights=_weights_used(job.weights, loaded),
        parameters=0,
        weight_bytes=0,
        capture_s=0.0,
        limits=tuple(captured.limits),
        ops=tuple(captured.ops),
        narrowings=tuple(captured.narrowings),
        violations=tuple(captured.violations),
    )


def program_of(job: Job, prepared: Prepared, target: str) -> capture.Program:
    """Return what a target exports from, as it was prepared."""

    @functools.cache
    def loaded() -> LoadedModel:
        return load_model(job)

    chosen = job.options.precision

    @functools.cache
    def make_module() -> torch.nn.Module:
        outputs = contract.as_function(prepared.contract).outputs
        kept = job.options.keep_float
        made = precision.cast(loaded().module, chosen, tuple(spec.dtype for spec in outputs), kept)
        if kept and chosen in precision.DTYPES:
            kept_layers.require_crossed(made, kept, program.example)
        return made

    def calibrating(promised: Contract, sizes: Sizes, make_at: Callable[[Sizes, int], Tensors]) -> capture.Samples:
        real = [one for one in _samples(loaded(), prepared.contract) if _fits(one, sizes, name)]
        given = [one.inputs + loaded().initial(prepared.contract, one.sizes) for one in real]
        placed = [tuple(t.to(job.options.device) for t in one) for one in given]
        # Calibrate with drawn inputs of many sizes and unusual values too, because the golden has all of them.
        seeds = SAMPLES[: FEWEST if loaded().state else 1]
        limit = make_golden.Limit(loaded().module, make_at(sizes, SAMPLES[0]), job.options.device, calls=len(seeds))
        drawn = _enough(lambda seed: make_at(sizes, seed), limit.most_calls)
        unusual = _unusual(loaded(), drawn[0], job.options.device)
        plan = make_golden.Plan(_others(prepared.base, sizes, promised), promised.symbols)
        fitting, _ = make_golden.fitting(make_at, plan, limit)
        others = [
            one
            for other in fitting.values()
            if other != sizes
            for one in _in_a_row(loaded(), [make_at(other, seed) for seed in seeds])
        ]
        return _in_a_row(loaded(), placed), _in_a_row(loaded(), drawn) + unusual + others

    def made(promised: Contract, sizes: dict[str, int], file: Path) -> capture.Program:
        def make_at(own: Sizes, seed: int = 0) -> Tensors:
            at = sizes | own
            return tuple(t.to(job.options.device) for t in loaded().arguments(prepared.contract, at, seed))

        own = (*precision.DTYPES, *SMALL_WEIGHTS)  # the shared program has the model's own weights
        shared = None if chosen in own else file
        return capture.Program(
            promised,
            job.options.device,
            make_module,
            functools.partial(make_at, {}),
            shared,
            make_samples=lambda: calibrating(promised, sizes, make_at),
            make_at=make_at,
        )

    whole = replace(prepared.contract, target=target, precision=job.options.judged_as or chosen)
    held = targets.narrowings(targets.get(target), prepared.narrowings) if target != EAGER else ()
    stamped = contract.narrow(whole, held)
    name, sizes = contract.specialized(stamped), prepared.capture_sizes
    program = made(stamped, sizes, job.exported_file)
    program.whole = whole
    program.excluded = tuple(sizes for sizes in prepared.violations if outside(sizes, stamped))
    program.entries = {
        size: made(contract.entry(stamped, size), sizes | {name: size}, job.entry_file(size))
        for size in _entries(stamped)
    }
    return program


def _enough(make: Callable[[int], Tensors], most: int) -> list[Tensors]:
    """Return inputs for calibration: FEWEST of them, or up to `most` if they are few floating-point values each."""
    first = make(SAMPLES[0])
    values = sum(tensor.numel() for tensor in first) if all(tensor.is_floating_point() for tensor in first) else 0
    count = max(FEWEST, min(most, -(-ENOUGH // values))) if values else FEWEST
    return [first, *map(make, SAMPLES[1:count])]


def _others(base: Sizes, sizes: Sizes, promised: Contract) -> list[tuple[Sizes, int]]:
    """Return the sizes and seeds of a golden for this contract; symbols without a range keep their sizes of `sizes`.

    Inputs of layers may have other ranges there: the more values a softmax has, the smaller they are.
    """
    example = {name: probing.nearest(base[name], bounds) for name, bounds in promised.symbols.items()}
    return probing.probe_plan({**sizes, **example}, promised.symbols)


def _unusual(loaded: LoadedModel, data: Tensors, device: str) -> list[Tensors]:
    """Return the arguments `data` with the values of the golden's unusual cases; with state, several calls of each.

    Values that the model refuses are left out. So are large ones: int8 is not checked there, and they would leave the
    usual ones few of the 256 steps.
    """
    count = len(loaded.names)
    inputs, state = data[:count], data[count:]
    limit_s = time_limit.of(lambda: eager_calls.run(loaded.module, data, device))
    found: list[Tensors] = []
    for change, changed in perturbations.changed(inputs).items():
        if change == perturbations.LARGE:
            continue
        with contextlib.suppress(Exception, time_limit.OutOfTime), time_limit.stop_after(limit_s):
            calls = _in_a_row(loaded, [(*changed, *state)] * (FEWEST if state else 1))
            if all(map(_is_finite, (*calls[-1], *eager_calls.run(loaded.module, calls[-1], device)))):
                found += calls
    return found


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _in_a_row(loaded: LoadedModel, given: list[Tensors]) -> list[Tensors]:
    """Return the inputs of consecutive calls: each takes the state that the call before left, the first the initial."""
    count = len(loaded.state.paths) if loaded.state else 0
    if not count or not given:
        return given
    made, state = [], given[0][-count:]
    for inputs in given:
        made.append((*inputs[:-count], *state))
        with torch.no_grad():
            state = loaded.module(*(t.clone() for t in made[-1]))[-count:]
    return made


def _fits(sample: samples.Sample, sizes: dict[str, int], specialized: str) -> bool:
    """Return whether the graph for these sizes accepts a sample. Without entries the only graph accepts every one."""
    return not specialized or sample.sizes.get(specialized) == sizes[specialized]


def warm_up(channel: socket.socket, target: str, options: targets.Options) -> None:
    """Do what the first export to a target on this machine would have to do."""
    server.configure(options)
    if act := targets.facts(target).warm_up:
        act(options)


def export_variant(
    channel: socket.socket, job: Job, prepared: Prepared, target: str, path: Path
) -> tuple[targets.Exported, float]:
    """Export one variant. Return the result and the seconds that it took, not counting loading of the model."""
    server.configure(job.options)
    route = targets.get(target)
    targets.require(route)
    program = program_of(job, prepared, target)
    key = artifact_cache.key_of(program, target, job.options)
    if key and (reused := artifact_cache.take(key, path)):
        return reused
    started = time.perf_counter()
    if prepared.ops:
        _ = program.module  # importing the model's code registers the operators and their output shapes
    custom_ops.import_packages((*prepared.ops, *prepared.libraries))
    exported = route.export(program, path, job.options)
    exported = replace(exported, warnings=(*exported.warnings, *_unseen(program)))
    if job.options.precision in SMALL_WEIGHTS:
        exported = replace(
            exported, notes=(small_weights.described(program.module, job.options.precision), *exported.notes)
        )
    if job.options.keep_float and job.options.precision in (*precision.DTYPES, *SMALL_WEIGHTS):
        exported = replace(exported, notes=(*exported.notes, f"float32 in {', '.join(job.options.keep_float)}"))
    loading = program.loading_s + sum(entry.loading_s for entry in program.entries.values())
    seconds = time.perf_counter() - started - loading
    used = program.used_capture or any(entry.used_capture for entry in program.entries.values())
    seconds += prepared.capture_s if used else 0.0
    more = {"module", "_samples"} if route.needs_program or prepared.ops else {"_samples"}
    if key and not more & vars(program).keys():  # else it was made from more than the program
        artifact_cache.keep(key, path, exported, seconds)
    return exported, seconds


def _unseen(program: capture.Program) -> tuple[Warned, ...]:
    """Return warnings for lines that change the state in a way that the artifact does not record."""
    if program.contract.state is None:
        return ()
    lines = data_writes.writes(type(module) for module in program.module.modules())
    return tuple(Warned(data_writes.SAID, line, unrecorded=True) for line in lines)


def convert_golden(channel: socket.socket, golden_path: str, path: str) -> None:
    """Rewrite a golden of any schema in the current one."""
    golden.save(golden.read(Path(golden_path)), Path(path))


def serve_live(channel: socket.socket, job: Job, prepared: Prepared, target: str, golden_path: str) -> None:
    """Serve a session without an artifact: eager, or a variant that is compiled in the process that runs it."""
    server.configure(job.options)

    def load() -> targets.Loaded:
        program = program_of(job, prepared, target)
        if target == EAGER:
            return eager(program)
        return targets.live(target).live(program, job.options)

    outputs = tuple(spec.name for spec in prepared.contract.outputs)
    server.serve(channel, load, golden_path, outputs, job.options)


def eager(program: capture.Program) -> targets.Loaded:
    """Return the model for calls in its own precision. If artifacts keep the state inside, the model does too."""
    module: torch.nn.Module = program.module
    reset: Callable[[], object] = tuple
    if isinstance(module, StatefulModule) and contract.keeps_state(program.contract):
        reset = Snapshot(module.model).restore
        module = flattening.FlatModule(module.model, module.example, module.leave_out).eval()

    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            outputs: Tensors = module(*inputs)
        return outputs

    return targets.Loaded(run, reset=reset)
