"""What runs in children: one function a job, each called in a process of its own with a socket to its parent."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from exporter import capture, cases, contract, flattening, golden, operators, places, precision, targets, widening
from exporter.errors import ExportError
from exporter.isolate import BACKGROUND, stand_back
from exporter.job import Findings, Job, Prepared
from exporter.loading import Loaded, find_contract, load_model
from exporter.parity import PRECISIONS, TOLERANCES
from exporter.records import EAGER, Contract, Tolerance
from exporter.session import server
from exporter.zygote import hear, tell

SAMPLES = range(7000, 7008)  # seeds of what is calibrated with: none of the golden's


def prepare(
    channel: socket.socket,
    job: Job,
    capture_program: bool,
    tolerance: tuple[float | None, float | None],
    golden_path: Path,
    precisions: tuple[str, ...] = (),
) -> Findings:
    """Find the contract, capture the program once for all, say so; then make the golden with the same loaded model."""
    loaded = load_model(job)
    device = job.options.device
    points = contract.sweep_points(loaded.base, loaded.symbols, job.sweep)
    found = find_contract(job, loaded)
    tell(channel, "loaded", None)
    weights = _weights_used(job.weights, loaded)
    published = loaded.module.model if weights == "pretrained" else None
    sizes = contract.capture_sizes(loaded.base, loaded.symbols)
    started = time.perf_counter()
    ops = _capture(job, loaded, found, sizes) if capture_program else ()
    prepared = Prepared(
        contract=found,
        base=loaded.base,
        capture_sizes=sizes,
        weights=weights,
        parameters=sum(p.numel() for p in loaded.module.parameters()),
        weight_bytes=_weight_bytes(loaded.module),
        capture_s=time.perf_counter() - started if capture_program else 0.0,
        warnings=tuple(dict.fromkeys(loaded.warnings)),
        ops=ops,
        points=points,
        origin=str(getattr(published, "exporter_origin", "")),
        licence=str(getattr(published, "exporter_licence", "")),
    )
    tell(channel, "prepared", prepared)
    widening.allow(int(hear(channel)))  # the golden's turn has come, with as many bytes for float64 weights
    stand_back(BACKGROUND)  # the exports have waited for this; from here on they run beside it
    plan = contract.probe_plan(loaded.base, loaded.symbols, points.values())
    made, findings = cases.make(
        loaded.module, loaded.inputs, plan, loaded.symbols, _tolerance(found, *tolerance), device, points
    )
    outputs = tuple(spec.dtype for spec in found.outputs)
    tolerances = {name: _asked(PRECISIONS[name], *tolerance) for name in precisions}
    others, notes = cases.in_precisions(made, loaded.module, tolerances, outputs, device)
    golden.save(replace(made, precisions=others), golden_path)
    return replace(findings, notes=findings.notes + notes, tolerances=tolerances)


def _weight_bytes(module: torch.nn.Module) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in module.state_dict().values()}
    return sum(storage.nbytes() for storage in storages.values())


def _weights_used(asked: str, loaded: Loaded) -> str:
    """What the recipe says of the weights it loaded; many say nothing."""
    said: str = getattr(loaded.module.model, "exporter_weights", "")
    chosen = getattr(loaded.recipe, "chooses_weights", True)
    return said or ("random" if asked == "random" and chosen else "the recipe's")


def _tolerance(found: Contract, rtol: float | None, atol: float | None) -> Tolerance:
    """The tolerance of the highest precision among the floating outputs, where the user asked for no other."""
    order = ("float64", "float32", "float16", "bfloat16")
    dtypes = {spec.dtype for spec in found.outputs}
    usual = TOLERANCES[next((d for d in order if d in dtypes), "float32")]
    return _asked(usual, rtol, atol)


def _asked(usual: Tolerance, rtol: float | None, atol: float | None) -> Tolerance:
    return replace(usual, rtol=usual.rtol if rtol is None else rtol, atol=usual.atol if atol is None else atol)


def _capture(job: Job, loaded: Loaded, found: Contract, sizes: dict[str, int]) -> tuple[str, ...]:
    """Save the exported program, or why there is none, for the jobs that need it, and warn of what was narrowed.

    Returns the namespaces of operators outside torch's own that it calls.
    """
    name = contract.specialized(found)
    captures = [(sizes | {name: size}, contract.entry(found, size), job.entry_file(size)) for size in _entries(found)]
    notes: list[str] = []
    ops: dict[str, None] = {}
    for at, promised, file in captures or [(sizes, found, job.exported_file)]:
        example = tuple(t.to(job.options.device) for t in loaded.inputs(at, 0))
        try:
            program = capture.export_program(loaded.module, example, promised, notes)
        except ExportError as error:
            file.with_suffix(".txt").write_text(str(error))
            continue
        try:
            torch.export.save(program, file)
        except Exception as error:  # its serializer does not know every node that a graph may have
            file.unlink(missing_ok=True)
            file.with_suffix(".txt").write_text(f"{capture.UNSAVED}{places.summary(error)}")
        ops |= dict.fromkeys(operators.of_exported(program))
    loaded.warnings += notes
    return tuple(ops)


def _entries(promised: Contract) -> tuple[int, ...]:
    """The sizes of which each has an entry of its own."""
    name = contract.specialized(promised)
    return promised.symbols[name].choices if name else ()


def _program(job: Job, prepared: Prepared, target: str) -> capture.Program:
    @functools.cache
    def loaded() -> Loaded:
        return load_model(job)

    chosen = job.options.precision

    @functools.cache
    def make_module() -> torch.nn.Module:
        return precision.cast(loaded().module, chosen, tuple(spec.dtype for spec in prepared.contract.outputs))

    def made(promised: Contract, sizes: dict[str, int], file: Path) -> capture.Program:
        def make(seed: int) -> flattening.Tensors:
            return tuple(t.to(job.options.device) for t in loaded().inputs(sizes, seed))

        shared = None if chosen in precision.DTYPES else file  # the graph that all share has the model's own weights
        return capture.Program(
            promised,
            job.options.device,
            make_module,
            functools.partial(make, 0),
            shared,
            make_samples=lambda: [make(seed) for seed in SAMPLES],
        )

    stamped = replace(prepared.contract, target=target, precision=chosen)
    name, sizes = contract.specialized(stamped), prepared.capture_sizes
    program = made(stamped, sizes, job.exported_file)
    program.entries = {
        size: made(contract.entry(stamped, size), sizes | {name: size}, job.entry_file(size))
        for size in _entries(stamped)
    }
    return program


def export_variant(
    channel: socket.socket, job: Job, prepared: Prepared, target: str, path: Path
) -> tuple[targets.Exported, float]:
    """Export one variant; returns what it said and the seconds that it took, without those of loading the model."""
    server.configure(job.options)
    route = targets.get(target)
    targets.require(route)
    program = _program(job, prepared, target)
    started = time.perf_counter()
    if prepared.ops:
        _ = program.module  # the model's code registers the operators, and says what their outputs are like
    exported = route.export(program, path, job.options)
    loading = program.loading_s + sum(entry.loading_s for entry in program.entries.values())
    seconds = time.perf_counter() - started - loading
    used = program.used_capture or any(entry.used_capture for entry in program.entries.values())
    return exported, seconds + (prepared.capture_s if used else 0.0)


def serve_live(channel: socket.socket, job: Job, prepared: Prepared, target: str, golden_path: str) -> None:
    """A session without an artifact: eager itself, or a variant that is compiled where it runs."""
    server.configure(job.options)

    def load() -> targets.Loaded:
        program = _program(job, prepared, target)
        if target == EAGER:
            return targets.Loaded(_eager(program.module))
        return targets.live(target).live(program, job.options)

    outputs = tuple(spec.name for spec in prepared.contract.outputs)
    server.serve(channel, load, golden_path, outputs, job.options)


def _eager(module: torch.nn.Module) -> Callable[[flattening.Tensors], flattening.Tensors]:
    def run(inputs: flattening.Tensors) -> flattening.Tensors:
        with torch.no_grad():
            outputs: flattening.Tensors = module(*inputs)
        return outputs

    return run
