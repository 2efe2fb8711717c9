"""Running an artifact in C++, one call in each process, with exporter-run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from exporter import targets
from exporter.core import runners
from exporter.core.contract_records import Contract
from exporter.model import custom_ops, tensor_files
from exporter.model.tensors import Run, Tensors

FOLDER = "cpp"
INPUTS, EXPECTED, OUTPUTS = "inputs.safetensors", "expected.safetensors", "outputs.safetensors"


def load(
    runner: Path, path: Path, read_contract: Callable[[Path], Contract], options: targets.Options, timeout: float
) -> Run:
    """Return a function that runs an artifact in `runner`. It raises ArtifactError with what that prints if it fails.

    `timeout` is in seconds, and limits one call.
    """
    contract = read_contract(path)
    words = [str(runner), "run", str(path), "--device", options.device, "--threads", str(options.threads)]
    words += custom_ops.runner_words(contract.ops, options.ops_libs)

    def run(inputs: Tensors) -> Tensors:
        with tempfile.TemporaryDirectory(prefix="native-") as folder:
            given, outputs = Path(folder, INPUTS), Path(folder, OUTPUTS)
            save(inputs, contract, given)
            runners.call([*words, "--inputs", str(given), "--outputs", str(outputs)], timeout)
            found, _ = tensor_files.read(outputs)
        return tuple(found[spec.name].to(options.device) for spec in contract.outputs)

    return run


def save(inputs: Tensors, contract: Contract, path: Path) -> None:
    """Write the inputs by their names in the contract."""
    tensor_files.save({spec.name: one for spec, one in zip(contract.inputs, inputs, strict=True)}, path)


def write(artifact: Path, contract: Contract, inputs: Tensors, expected: Tensors, out: Path) -> tuple[str, ...]:
    """Write what shows a failure in C++ to the folder FOLDER in `out`: a part, its inputs and outputs.

    Returns the names of the files, relative to `out`.
    """
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = f"part{artifact.suffix}"
    shutil.copyfile(artifact, folder / name)
    save(inputs, contract, folder / INPUTS)
    tensor_files.save({spec.name: one for spec, one in zip(contract.outputs, expected, strict=True)}, folder / EXPECTED)
    return tuple(f"{FOLDER}/{one}" for one in (name, INPUTS, EXPECTED))
