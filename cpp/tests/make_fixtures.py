"""Makes the files that the tests read, with torch alone: make_fixtures.py DIRECTORY OPERATORS.

A small model with a dynamic batch, as `model.pt` and `model.pt2`, with its `golden.pt`; `exported.pt2`, an
ExportedProgram; `bare.pt`, without a contract; `custom.pt` and `custom.pt2`, `meet.pt` and `meet.pt2`, which call
operators of the library OPERATORS; `deep.pt`, tuples in one another. Does nothing when they are there already, made by
the same torch and by this file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

BATCHES = (1, 2, 5)


class Model(torch.nn.Module):
    """Two inputs that share a batch, and outputs of two dtypes."""

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
    """One operator that is not torch's, on a length that follows from a symbol."""

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
                "inputs": list(tensors),
                "eager": list(eager),
                "reference": list(reference),
            }
        )
    usual = {"rtol": 1e-4, "atol": 1e-5, "k": 2.0}
    half = [[t.bfloat16().float() if t.is_floating_point() else t for t in case["eager"]] for case in cases]
    precisions = {
        "bf16": {"tolerance": {"rtol": 1.6e-2, "atol": 1e-2, "k": 3.0}, "eager": half, "without": []},
        "int8": {"tolerance": usual | {"min_cosine": 0.995}, "eager": [], "without": [cases[-1]["name"]]},
    }
    torch.save({"schema": 1, "tolerance": usual, "cases": cases, "precisions": precisions}, path)


def save_torchscript(model: Model, directory: Path) -> None:
    traced = torch.jit.trace(model, inputs(2, 0))
    torch.jit.save(traced, directory / "model.pt", _extra_files={"contract.json": json.dumps(contract("trace"))})
    torch.jit.save(traced, directory / "bare.pt")


def save_packages(model: Model, directory: Path) -> None:
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(model, inputs(2, 0), dynamic_shapes=({0: dynamic}, {0: dynamic}))
    torch.export.save(program, directory / "exported.pt2")
    save_package(program, directory / "model.pt2", contract("compile"))


def save_package(program: torch.export.ExportedProgram, package: Path, its_contract: dict[str, Any]) -> None:
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(package),
        inductor_configs={"cpp.dynamic_threads": True, "aot_inductor.link_libtorch": False},
    )
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{top}/extra/contract.json", json.dumps(its_contract))


class Meet(torch.nn.Module):
    """Ends when other callers are inside too; the first element says how many."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        met: torch.Tensor = torch.ops.exporter_test.meet(x)
        return met.sum(1)


def save_custom(name: str, model: torch.nn.Module, directory: Path) -> None:
    x = torch.ones(2, 9)
    traced = torch.jit.trace(model, (x,))
    torch.jit.save(
        traced, directory / f"{name}.pt", _extra_files={"contract.json": json.dumps(custom_contract("trace"))}
    )
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(model, (x,), dynamic_shapes=({0: dynamic, 1: dynamic},))
    save_package(program, directory / f"{name}.pt2", custom_contract("compile"))


def main(directory: Path, operators: Path) -> None:
    stamp = directory / "complete"
    made_by = f"{torch.__version__} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}"
    if stamp.exists() and stamp.read_text() == made_by:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    warnings.simplefilter("ignore")  # torch.jit is deprecated, and still what is tested
    torch.manual_seed(0)
    torch.ops.load_library(str(operators))
    model = Model().eval()
    with torch.no_grad():
        save_golden(model, directory / "golden.pt")
        save_torchscript(model, directory)
        save_packages(model, directory)
        save_custom("custom", Custom().eval(), directory)
        save_custom("meet", Meet().eval(), directory)
    torch.save({"tokens": inputs(3, 7)[0], "scale": inputs(3, 7)[1]}, directory / "inputs.pt")
    torch.save(list(inputs(3, 7)), directory / "inputs_list.pt")
    torch.save(functools.reduce(lambda inner, _: (inner,), range(150), ()), directory / "deep.pt")
    stamp.write_text(made_by)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
