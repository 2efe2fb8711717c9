"""Make the fixtures of the tests, with torch, safetensors and exporter's index: make_fixtures.py DIRECTORY OPERATORS.

Without state: `model.pt` and `model.pt2`, a small model with a dynamic batch, and its `golden.safetensors`;
`mapped.pt2`, the same frozen and with its weights outside the library (from torch 2.14);
`exported.pt2`, an ExportedProgram; `bare.pt`, without a contract; `custom.pt`, `custom.pt2`, `meet.pt` and `meet.pt2`,
which call operators of the library OPERATORS; `inputs.safetensors`; `inputs.pt`, a pickle; `SHA256SUMS` of all files.

With state: `stream.pt`, `stream.pt2` and `last.pt`, whose caller keeps the state, and `golden_stream.safetensors`;
`carry.pt`, `carry.pt2`, `carry_mapped.pt2` and `carry_frozen.pt2`, which keep their state, and
`golden_carry.safetensors`;
`carry_batch.pt`, whose state depends on the batch; `folded.pt2` and `no_reset.pt`, which lost the state that their
contracts declare.

Does nothing if the fixtures exist and were made by the same torch and the same version of this file.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import goldens
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from exporter.targets import _weights

BATCHES = (1, 2, 5)
MAPPED = _weights.SETTINGS if torch.torch_version.TorchVersion(torch.__version__) >= (2, 14) else {}


class Model(torch.nn.Module):
    """Has two inputs that share a batch, and outputs of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.linear(self.embedding(tokens).mean(1)) * scale
        return hidden.softmax(-1), hidden.argmax(-1)


def contract(target: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "model": "tiny",
        "target": target,
        "device": "cpu",
        "inputs": [
            {"name": "tokens", "dtype": "int64", "shape": ["batch", 6]},
            {"name": "scale", "dtype": "float32", "shape": ["batch", 4]},
        ],
        "outputs": [
            {"name": "probabilities", "dtype": "float32", "shape": ["batch", 4]},
            {"name": "label", "dtype": "int64", "shape": ["batch"]},
        ],
        "symbols": {"batch": {"min": 1, "max": 8}},
        "torch": torch.__version__,
    }


def inputs(batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (batch, 6), generator=generator), torch.rand(batch, 4, generator=generator) + 0.5


class Custom(torch.nn.Module):
    """Calls an operator outside torch; the length of its input is computed from a symbol."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        affine: torch.Tensor = torch.ops.exporter_test.affine(x, 2.0, -1.0)
        return affine.sum(1)


def custom_contract(target: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "model": "custom",
        "target": target,
        "device": "cpu",
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "2*length+1"]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["batch"]}],
        "symbols": {"batch": {"min": 1, "max": 8}, "length": {"min": 1, "max": 64}},
        "torch": torch.__version__,
        "ops": ["exporter_test"],
    }


def save_golden(model: Model, path: Path) -> None:
    cases = []
    for batch in BATCHES:
        tensors = inputs(batch, seed=batch)
        eager = model(*tensors)
        reference = model.double()(tensors[0], tensors[1].double())
        model.float()
        cases.append(
            {
                "name": f"batch={batch}",
                "seed": batch,
                "sizes": {"batch": batch},
                "inputs": list(tensors),
                "eager": list(eager),
                "reference": list(reference),
            }
        )
    usual = {"rtol": 1e-4, "atol": 1e-5, "k": 2.0}
    half = [[t.bfloat16().float() if t.is_floating_point() else t for t in case["eager"]] for case in cases]
    stored = [[t * 1.01 if t.is_floating_point() else t for t in case["reference"]] for case in cases]
    precisions = {
        "bf16": {"tolerance": {"rtol": 1.6e-2, "atol": 1e-2, "k": 3.0}, "eager": half, "without": []},
        "int8": {"tolerance": usual | {"min_cosine": 0.995}, "eager": [], "without": [cases[-1]["name"]]},
        "int8w": {"tolerance": usual | {"min_cosine": 0.999}, "eager": [], "without": [], "stored": stored},
        "fp16w": {"tolerance": usual | {"min_cosine": 0.9999}, "eager": [], "without": []},
    }
    others = {"float16": {"rtol": 1e-2, "atol": 1e-3, "k": 3.5}}  # no output has this dtype
    goldens.save({"tolerance": usual, "tolerances": others, "cases": cases, "precisions": precisions}, path)


def save_torchscript(model: Model, directory: Path) -> None:
    traced = torch.jit.trace(model, inputs(2, 0))
    torch.jit.save(traced, directory / "model.pt", _extra_files={"contract.json": json.dumps(contract("trace"))})
    torch.jit.save(traced, directory / "bare.pt")


def save_packages(model: Model, directory: Path) -> None:
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(model, inputs(2, 0), dynamic_shapes=({0: dynamic}, {0: dynamic}))
    torch.export.save(program, directory / "exported.pt2")
    save_package(program, directory / "model.pt2", contract("compile"))
    save_package(program, directory / "mapped.pt2", contract("compile"), freezing=True, **MAPPED)


def save_package(
    program: torch.export.ExportedProgram, package: Path, its_contract: dict[str, Any], **options: Any
) -> None:
    with _weights.indexed():
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(package),
            inductor_configs={"cpp.dynamic_threads": True, "aot_inductor.link_libtorch": False, **options},
        )
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{top}/extra/contract.json", json.dumps(its_contract))


class Meet(torch.nn.Module):
    """Returns once N callers are inside at the same time, where N is the first element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        met: torch.Tensor = torch.ops.exporter_test.meet(x)
        return met.sum(1)


class Kept(torch.nn.Module):
    """Returns a tensor of its own beside one that it computes from it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.own, x + self.own, self.own[1:]


def save_kept(directory: Path) -> None:
    """Save the module that returns a tensor of its own, as a constant and as a buffer."""
    its_contract = custom_contract("trace") | {"symbols": {}, "ops": []}
    its_contract["inputs"] = [spec("x", "float32", 2, 4)]
    its_contract["outputs"] = [spec("own", "float32", 4), spec("sum", "float32", 2, 4), spec("view", "float32", 3)]
    traced = torch.jit.trace(Kept().eval(), (torch.ones(2, 4),))
    extra = {"contract.json": json.dumps(its_contract)}
    torch.jit.save(traced, directory / "kept_in_buffer.pt", _extra_files=dict(extra))
    torch.jit.save(torch.jit.freeze(traced), directory / "kept.pt", _extra_files=dict(extra))


def save_custom(name: str, model: torch.nn.Module, directory: Path) -> None:
    x = torch.ones(2, 9)
    traced = torch.jit.trace(model, (x,))
    torch.jit.save(
        traced, directory / f"{name}.pt", _extra_files={"contract.json": json.dumps(custom_contract("trace"))}
    )
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(model, (x,), dynamic_shapes=({0: dynamic, 1: dynamic},))
    save_package(program, directory / f"{name}.pt2", custom_contract("compile"))


CONTEXT = torch.arange(8.0).reshape(1, 8) / 8
COUNT = 3
WEIGHTS = torch.arange(1.0, 13.0) / 12


class Pure(torch.nn.Module):
    """A streaming model as a function of its state: the last inputs and the number of calls."""

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        joined = torch.cat([context, x], 1)
        return (joined * WEIGHTS.to(x.dtype)).sum(1) + count, joined[:, 4:].clone(), count + 1


class Carrying(torch.nn.Module):
    """Like Pure, but keeps its state in buffers, as packages do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", WEIGHTS.clone())
        self.register_buffer("state_0", CONTEXT.clone())
        self.register_buffer("state_1", torch.tensor(COUNT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.state_0, x], 1)
        y: torch.Tensor = (joined * self.weights).sum(1) + self.state_1
        self.state_0.copy_(joined[:, 4:])
        self.state_1.add_(1)
        return y


class Uncounted(torch.nn.Module):
    """Like Carrying, without the count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", WEIGHTS.clone())
        self.register_buffer("state_0", CONTEXT.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.state_0, x], 1)
        self.state_0.copy_(joined[:, 4:])
        return (joined * self.weights).sum(1)


class Scripted(torch.nn.Module):
    """Like Carrying, as TorchScript with a reset; its context takes the batch of the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", WEIGHTS.clone())
        self.register_buffer("initial", CONTEXT.clone())
        self.context = torch.full((1, 8), 99.0)  # as if left by an earlier call
        self.count = 99

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.count >= 23:  # after 20 calls
            raise RuntimeError("the cache is full")
        joined = torch.cat([self.context.expand(x.size(0), 8), x], 1)
        y: torch.Tensor = (joined * self.weights).sum(1) + self.count
        self.context = joined[:, 4:]
        self.count += 1
        return y

    @torch.jit.export
    def reset(self) -> None:
        self.context = self.initial.clone()
        self.count = 3


class Last(torch.nn.Module):
    """Returns the previous call's input plus 1. Its state is the input tensor itself."""

    def forward(self, x: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return last + 1, x


def spec(name: str, dtype: str, *shape: int | str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def stream_contract(target: str, kept: str, batch: int | str, counts: bool = True) -> dict[str, Any]:
    data = base64.b64encode(CONTEXT.numpy().tobytes()).decode()
    tensors = [spec("context", "float32", batch, 8) | {"initial": {"shape": [1, 8], "data": data}}]
    tensors += [spec("count", "int64") | {"initial": COUNT}] if counts else []
    outside = [spec(f"state.{t['name']}", t["dtype"], *t["shape"]) for t in tensors] if kept == "outside" else []
    return {
        "schema": 2,
        "model": "streaming",
        "target": target,
        "device": "cpu",
        "inputs": [spec("x", "float32", batch, 4), *outside],
        "outputs": [spec("y", "float32", batch), *outside],
        "symbols": {"batch": {"min": 1, "max": 8}} if batch == "batch" else {},
        "state": {"kept": kept, "tensors": tensors},
        "torch": torch.__version__,
    }


def save_script(module: Any, path: Path, its_contract: dict[str, Any]) -> None:
    torch.jit.save(torch.jit.script(module), path, _extra_files={"contract.json": json.dumps(its_contract)})


def sequence(batch: int, seed: int, outside: bool) -> list[dict[str, Any]]:
    """Return the cases of three calls from the initial state, in float32 and in float64."""
    generator = torch.Generator().manual_seed(seed)
    initial = [CONTEXT.expand(batch, 8).clone(), torch.tensor(COUNT)]
    eager, reference = list(initial), [initial[0].double(), initial[1]]
    cases = []
    for step in range(3):
        x = torch.rand(batch, 4, generator=generator)
        y, *eager = Pure()(x, *eager)
        exact, *reference = Pure()(x.double(), *reference)
        cases.append(
            {
                "name": f"batch={batch} step {step}",
                "seed": seed,
                "sizes": {"batch": batch},
                "step": step,
                "inputs": [x, *(initial if outside and step == 0 else [])],
                "eager": [y, *(eager if outside else [])],
                "reference": [exact, *(reference if outside else [])],
            }
        )
    return cases


def save_stream_golden(path: Path, cases: list[dict[str, Any]]) -> None:
    usual = {"rtol": 1e-4, "atol": 1e-5, "k": 2.0}
    precisions = {"bf16": {"tolerance": usual, "eager": [], "without": [cases[4]["name"]]}}
    goldens.save({"tolerance": usual, "cases": cases, "precisions": precisions}, path)


def save_streams(directory: Path) -> None:
    save_stream_golden(directory / "golden_stream.safetensors", sequence(1, 0, True) + sequence(2, 1, True))
    save_stream_golden(directory / "golden_carry.safetensors", sequence(1, 0, False) + sequence(1, 1, False))
    x, context, count = torch.rand(2, 4), CONTEXT.expand(2, 8).clone(), torch.tensor(COUNT)
    traced = torch.jit.trace(Pure(), (x, context, count))
    extra = {"contract.json": json.dumps(stream_contract("trace", "outside", "batch"))}
    torch.jit.save(traced, directory / "stream.pt", _extra_files=extra)
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(Pure(), (x, context, count), dynamic_shapes=({0: dynamic}, {0: dynamic}, None))
    save_package(program, directory / "stream.pt2", stream_contract("compile", "outside", "batch"))
    save_script(Scripted(), directory / "carry.pt", stream_contract("script", "inside", 1))
    save_script(Scripted(), directory / "carry_batch.pt", stream_contract("script", "inside", "batch"))
    save_script(torch.nn.Identity(), directory / "no_reset.pt", stream_contract("script", "inside", 1))
    last = stream_contract("script", "outside", 1, counts=False)
    last["state"]["tensors"] = [spec("last", "float32", 1, 4) | {"initial": 0}]
    last["inputs"][1] = last["outputs"][1] = spec("state.last", "float32", 1, 4)
    save_script(Last(), directory / "last.pt", last)
    save_carrying(directory)


def save_carrying(directory: Path) -> None:
    """Save packages that keep their state. By default, inductor folds state with one element into a constant."""
    x, kept = torch.rand(1, 4), {"joint_graph_constant_folding": False}
    program = torch.export.export(Carrying(), (x,))
    save_package(program, directory / "carry.pt2", stream_contract("compile", "inside", 1), **kept)
    save_package(program, directory / "carry_mapped.pt2", stream_contract("compile", "inside", 1), **kept, **MAPPED)
    # Without the count, which freezing would fold.
    program = torch.export.export(Uncounted(), (x,))
    package = directory / "carry_frozen.pt2"
    save_package(program, package, stream_contract("compile", "inside", 1, counts=False), freezing=True)
    with zipfile.ZipFile(package) as archive, zipfile.ZipFile(directory / "folded.pt2", "w") as folded:
        for name in archive.namelist():
            promised = json.dumps(stream_contract("compile", "inside", 1))
            folded.writestr(name, promised if name.endswith("contract.json") else archive.read(name))


@contextlib.contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a forked process while the block runs, because compiling packages is slow."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    yield
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("making the fixtures with state failed")


def main(directory: Path, operators: Path) -> None:
    stamp = directory / "complete"
    sources = b"".join(Path(file).read_bytes() for file in (__file__, goldens.__file__))
    made_by = f"{torch.__version__} {hashlib.sha256(sources).hexdigest()}"
    if stamp.exists() and stamp.read_text() == made_by:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    warnings.simplefilter("ignore")  # torch.jit is deprecated, but still tested here
    torch.manual_seed(0)
    torch.ops.load_library(str(operators))
    model = Model().eval()
    with torch.no_grad(), beside(lambda: save_streams(directory)):
        save_golden(model, directory / "golden.safetensors")
        save_torchscript(model, directory)
        save_packages(model, directory)
        save_kept(directory)
        save_custom("custom", Custom().eval(), directory)
        save_custom("meet", Meet().eval(), directory)
    save_file({"tokens": inputs(3, 7)[0], "scale": inputs(3, 7)[1]}, directory / "inputs.safetensors")
    torch.save({"tokens": inputs(3, 7)[0]}, directory / "inputs.pt")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}
    (directory / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    stamp.write_text(made_by)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
