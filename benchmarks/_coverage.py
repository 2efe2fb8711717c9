"""Judge one architecture in a separate process: the bare calls and exporter's artifacts, each at two further shapes.

Artifacts are compared with eager independently of exporter, at sizes and seeds that are not in any golden: in Python
by `open_artifact` and, if asked, in C++ by `exporter-run run`. A detector's boxes may come in another order: those with
nearly equal scores change places by rounding.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import subprocess
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import exporter
from exporter import targets
from exporter.bundle import layout
from exporter.core import environment
from exporter.core.contract_records import Contract
from exporter.core.size_range import Range
from exporter.model import custom_ops, flattening, recipes
from exporter.model.tensors import Tensors
from exporter.workers import tasks
from exporter.workers.messages import Job

SEED = 4321
STEPS = 8  # calls of a stream
TIMEOUT_S = 300
Call = tuple[tuple[Any, ...], dict[str, Any]]
Runner = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def main(
    model: str,
    place: Path,
    asked: Mapping[str, tuple[int, ...]],
    bare: Sequence[str],
    log: Path,
    native: Sequence[str],
    answer: Connection,
) -> None:
    """Send {"bare": {target: verdict}, "exporter": {target: verdict}} and append all output to the log.

    `asked` holds the sizes of the example, (SIZE,), and the ranges, (MIN, MAX), that were passed to the export.
    `native` names the targets whose artifacts also run in C++.
    """
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {name: size[0] for name, size in asked.items() if len(size) == 1}
        ranges = {name: Range(*size) for name, size in asked.items() if len(size) > 1}
        job = Job(
            "m", recipes.find(model), Path(folder), targets.Options(), weights="random", sizes=sizes, ranges=ranges
        )
        loaded = tasks.load_model(job)
        subject = Subject(loaded)
        verdicts: dict[str, dict[str, str]] = {"exporter": judge_bundle(subject, place, native)}
        if bare:
            verdicts["bare"] = {
                name: attempt(lambda make=make: subject.judge(make(loaded.module.model, subject.example, Path(folder))))
                for name, make in BARE.items()
                if name in bare
            }
    answer.send(verdicts)


class Subject:
    """The model with its example, and eager's outputs at sizes and seeds that are not in any golden."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded
        self.example: Call = self._call(loaded.base, 0)
        # An artifact's contract records whether the model keeps state; for bare calls, the recipe declares it.
        self.streams = getattr(loaded.recipe, "streams", False)

    def _call(self, sizes: Mapping[str, int], seed: int) -> Call:
        torch.manual_seed(seed)
        return flattening.as_call(self.loaded.recipe.inputs(**sizes))

    def sizes(self, ranges: Mapping[str, Range], step: int) -> dict[str, int]:
        """Return the example's sizes, each dynamic one increased by `step` steps as far as its range allows."""
        further = {n: self.loaded.base[n] + step * r.multiple_of for n, r in ranges.items()}
        moved = {n: max((s for s in r.sizes if s <= further[n]), default=r.sizes[0]) for n, r in ranges.items()}
        return {**self.loaded.base, **moved}

    def calls(self, ranges: Mapping[str, Range]) -> Iterator[tuple[Call, Tensors, Tensors]]:
        """Yield the inputs as the model takes them, the same inputs flattened, and eager's outputs."""
        for step in (3, 4):  # batches of 4 and 5 for torchvision, whose goldens have 1, 2, 3 and 6
            sizes = self.sizes(ranges, step)
            args, kwargs = self._call(sizes, SEED + step)
            with torch.no_grad():
                expected = flattening.output_leaves(self.loaded.module.model(*args, **kwargs))[1]
            yield self._call(sizes, SEED + step), self.loaded.inputs(sizes, SEED + step), expected

    def stream(self, ranges: Mapping[str, Range], seed: int) -> Iterator[tuple[Call, Tensors, Tensors]]:
        """Yield the same for successive calls of a new instance of the model."""
        model = self.loaded.recipe.load("auto").eval()
        for step in range(STEPS):
            sizes = self.sizes(ranges, step % 5)
            args, kwargs = self._call(sizes, seed + step)
            with torch.no_grad():
                expected = flattening.output_leaves(model(*args, **kwargs))[1]
            copies = tuple(t.clone() for t in expected)  # the state itself may be an output
            yield self._call(sizes, seed + step), self.loaded.inputs(sizes, seed + step), copies

    def judge(self, run: Runner) -> str:
        """Return `right` or `wrong`. The caller handles whatever `run` raises."""
        ranges = self.loaded.symbols
        for (args, kwargs), _, expected in self.stream(ranges, SEED) if self.streams else self.calls(ranges):
            with torch.no_grad():
                outputs = flattening.output_leaves(run(args, kwargs))[1]
            if not agree(outputs, expected):
                return "wrong"
        return "right"

    def judge_artifact(self, path: Path, native: bool) -> str:
        """Judge an artifact at sizes that it promises, with `native` also in C++; with state, by two sequences."""
        artifact = exporter.open_artifact(path)
        if native and (problem := self.judge_native(path, artifact.contract)):
            return problem
        promised = artifact.contract.symbols
        if self.streams and artifact.contract.state is None:
            return "wrong: the state was not found"
        if artifact.contract.state is None:
            for _, flat, expected in self.calls(promised):
                if not agree(tuple(artifact(*flat).values()), expected):
                    return "wrong"
            return self._right(promised)
        stream = artifact.stream()
        for seed in (SEED, SEED + 1000):
            stream.reset()
            for step, (_, flat, expected) in enumerate(self.stream(promised, seed)):
                if not agree(tuple(stream(*flat).values()), expected):
                    return f"wrong: call {step + 1} of a stream"
        return self._right(promised)

    def judge_native(self, path: Path, contract: Contract) -> str:
        """Judge an artifact in C++ at sizes that it promises. Returns `wrong: …`, or "" if the outputs are right."""
        if contract.state is None:
            sequences = [[call] for call in self.calls(contract.symbols)]
        else:
            sequences = [list(self.stream(contract.symbols, seed)) for seed in (SEED, SEED + 1000)]
        for sequence in sequences:
            answers = run_native(path, contract, [flat for _, flat, _ in sequence])
            for step, (outputs, (_, _, expected)) in enumerate(zip(answers, sequence, strict=True)):
                if not agree(outputs, expected):
                    return f"wrong: call {step + 1} in C++"
        return ""

    def _right(self, promised: Mapping[str, Range]) -> str:
        """Return `right`, with the sizes for which the artifact promises less than the recipe."""
        asked = self.loaded.symbols
        narrower = [f"{n} {promised.get(n, 'fixed')}" for n, r in asked.items() if promised.get(n) != r]
        return f"right: only {'; '.join(narrower)}" if narrower else "right"


def run_native(path: Path, contract: Contract, calls: Sequence[Tensors]) -> list[Tensors]:
    """Return the outputs, without the state, of successive calls in one process of exporter-run."""
    kept = {tensor.spec.name for tensor in contract.state.tensors} if contract.state else set()
    inputs = [spec.name for spec in contract.inputs if spec.name not in kept]
    outputs = [spec.name for spec in contract.outputs if spec.name not in kept]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "outputs.safetensors")
        command = [str(environment.find_runner()), "run", str(path), "--threads", "1", "--outputs", str(result)]
        for step, call in enumerate(calls):
            file = Path(folder, f"{step}.safetensors")
            tensors = {name: t.detach().clone().contiguous() for name, t in zip(inputs, call, strict=True)}
            safetensors.torch.save_file(tensors, file)
            command += ["--inputs", str(file)]
        for library in filter(None, map(custom_ops.library, contract.ops)):
            command += ["--ops-lib", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"exporter-run: {done.stderr.strip()}")
        found = safetensors.torch.load_file(result)
    stream = contract.state is not None
    return [tuple(found[f"{step}.{n}" if stream else n] for n in outputs) for step in range(len(calls))]


def agree(outputs: Tensors, expected: Tensors) -> bool:
    """Return whether the outputs have the expected shapes, and values within a thousandth of the largest."""
    if [o.shape for o in outputs] != [e.shape for e in expected]:
        return False
    pairs = list(zip(outputs, expected, strict=True))
    while pairs:
        count = 3 if is_detection([target for _, target in pairs[:3]]) else 1
        own, pairs = pairs[:count], pairs[count:]
        if not (all(bool(close(*pair).all()) for pair in own) or (count == 3 and agree_reordered(own))):
            return False
    return True


def close(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return which values agree."""
    if not target.is_floating_point() and not target.is_complex():
        return output.to(target) == target
    largest = float(target.abs().max()) if target.numel() else 0.0
    return (output - target).abs() <= 1e-3 * largest + 1e-4  # False if the difference is NaN


def is_detection(outputs: Sequence[torch.Tensor]) -> bool:
    """Return whether outputs are the boxes, labels and scores of one image."""
    count = len(outputs[0]) if outputs[0].dim() == 2 else 0
    return [tuple(o.shape) for o in outputs] == [(count, 4), (count,), (count,)]


def agree_reordered(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Return whether every expected detection agrees with one that was found, and the other way round."""
    same = [close(found[:, None], wanted[None]).flatten(2).all(2) for found, wanted in _as_matrices(pairs)]
    agreeing = torch.stack(same).all(0)
    return bool(agreeing.any(0).all() and agreeing.any(1).all())


def _as_matrices(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return ((found.reshape(len(found), -1), wanted.reshape(len(wanted), -1)) for found, wanted in pairs)


def judge_bundle(subject: Subject, place: Path, native: Sequence[str]) -> dict[str, str]:
    """Return `right`, `wrong` (passed, but should not have) or `refused: REASON` for each row of a bundle."""
    if not (place / layout.MANIFEST).is_file():
        place = place.with_name(f"{place.name}.interrupted")
    manifest = layout.read_manifest(place)
    verdicts = {}
    for record in manifest.variants:
        if record.status == "failed":
            verdicts[record.name] = f"refused: {record.reason}"
        elif record.artifact is not None:
            path = place / record.artifact.path
            in_cpp = record.name in native
            verdicts[record.name] = attempt(lambda path=path, in_cpp=in_cpp: subject.judge_artifact(path, in_cpp))
    return verdicts


def attempt(act: Callable[[], str]) -> str:
    """Return what `act` returns, run in a separate process because it may raise, crash or hang."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        errors = io.StringIO()
        try:
            theirs.send(act())
        except BaseException as error:
            traceback.print_exc(file=errors)
            theirs.send(f"refused: {type(error).__name__}: {' '.join(str(error).split())[:200]}")

    process = context.Process(target=child)
    process.start()
    theirs.close()
    try:
        if not ours.poll(TIMEOUT_S):
            process.kill()
            return f"refused: took longer than {TIMEOUT_S} s"
        return str(ours.recv())
    except EOFError:
        process.join()
        return f"refused: crashed with exit code {process.exitcode}"
    finally:
        process.join()


def bare_trace(model: torch.nn.Module, call: Call, folder: Path) -> Runner:
    """Run torch.jit.trace; save and load the result."""
    args, kwargs = call
    traced = torch.jit.trace(model, args or None, example_kwarg_inputs=kwargs or None)
    return saved(traced, folder)


def bare_script(model: torch.nn.Module, call: Call, folder: Path) -> Runner:
    """Run torch.jit.script; save and load the result."""
    return saved(torch.jit.script(model), folder)


def saved(module: Any, folder: Path) -> Runner:
    """Save a ScriptModule and return a function that runs the loaded copy."""
    torch.jit.save(module, str(folder / "bare.pt"))
    loaded = torch.jit.load(str(folder / "bare.pt"))
    return lambda args, kwargs: loaded(*args, **kwargs)


def bare_compile(model: torch.nn.Module, call: Call, folder: Path) -> Runner:
    """Run torch.export and AOTInductor; load the package."""
    args, kwargs = call
    program = torch.export.export(model, args, kwargs)
    path = str(folder / "bare.pt2")
    unoptimized = {"aot_inductor.debug_compile": True}  # saves time in the C++ compiler
    torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=unoptimized)
    loaded = torch._inductor.aoti_load_package(path)
    return lambda args, kwargs: loaded(*args, **kwargs)


def bare_export(model: torch.nn.Module, call: Call, folder: Path) -> Runner:
    """Run torch.export; save and load the program."""
    args, kwargs = call
    path = folder / "bare.exported.pt2"
    torch.export.save(torch.export.export(model, args, kwargs), path)
    loaded = torch.export.load(path).module()
    return lambda args, kwargs: loaded(*args, **kwargs)


def bare_onnx(model: torch.nn.Module, call: Call, folder: Path) -> Runner:
    """Run torch.onnx.export; load the model in onnxruntime."""
    import onnxruntime

    args, kwargs = call
    path = str(folder / "bare.onnx")
    torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        tensors = flattening.flatten_inputs(model, kwargs or args).tensors
        feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), tensors, strict=True)}
        return tuple(map(torch.from_numpy, session.run(None, feed)))

    return run


BARE = {
    "trace": bare_trace,
    "script": bare_script,
    "compile": bare_compile,
    "export": bare_export,
    "onnx": bare_onnx,
}
