"""Running an artifact in C++, one call in each process, with exporter-run."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from exporter import targets
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError
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
            command = [*words, "--inputs", str(given), "--outputs", str(outputs)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
            except subprocess.TimeoutExpired as error:
                raise ArtifactError(f"exporter-run did not end within {timeout:.0f} s") from error
            if done.returncode:
                raise ArtifactError(_said(done))
            found, _ = tensor_files.read(outputs)
        return tuple(found[spec.name].to(options.device) for spec in contract.outputs)

    return run


def _said(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"exporter-run was ended by {signal.Signals(-done.returncode).name}"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[0].removeprefix("Error: ") if lines else f"exporter-run ended with {done.returncode}"


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
