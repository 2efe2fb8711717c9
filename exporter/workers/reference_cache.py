"""References in float64 from an earlier run, because in float64 a large model takes longer than all else of its golden.

They are taken only if eager, run just now, returned the same outputs bit for bit, from the same inputs, and the
exported program, weights included, is the same byte for byte. So must be the files that define the model and what else
a result depends on. They must also agree with eager's outputs within the tolerance.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

import exporter
from exporter.core.contract_records import Contract
from exporter.core.parity_records import Tolerance
from exporter.evidence import eager, perturbations
from exporter.model import tensor_files
from exporter.model.tensors import Tensors
from exporter.targets import Exported
from exporter.workers import artifact_cache
from exporter.workers.messages import Job

INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
OURS = str(Path(exporter.__file__).parent)  # `artifact_cache.surroundings` has it
Outputs = Sequence[Tensors]
Pairs = Sequence[tuple[Tensors, Tensors]]


@dataclass(frozen=True)
class References:
    """Computes references like `eager.references_also`, or takes those of an earlier run."""

    job: Job
    contract: Contract
    tolerance: Tolerance

    def __call__(
        self, module: torch.nn.Module, data: Outputs, given: Outputs, unusual: Pairs, device: str
    ) -> tuple[list[Tensors], list[Tensors | None], str]:
        """Return what `eager.references_also` returns. `given` has eager's outputs for the inputs `data`."""
        key, file = self._key(module, data, given, unusual), self.job.work / "references.safetensors"
        outputs = [*given, *(outputs for _, outputs in unusual)]
        if key and artifact_cache.take(key, file):
            found = self._read(file, outputs)
            if found is not None:
                print("the references in float64 are those of an earlier run", flush=True)
                return found[: len(given)], [*found[len(given) :]], "float64"
        started = time.perf_counter()
        usual, others, kind = eager.references_also(module, data, given, unusual, device)
        made = [*usual, *(one for one in others if one is not None)]
        if key and kind == "float64" and len(made) == len(outputs):
            with contextlib.suppress(OSError, SafetensorError):  # on a full disk they are not kept
                tensor_files.save({f"{i}.{k}": t for i, one in enumerate(made) for k, t in enumerate(one)}, file)
                artifact_cache.keep(key, file, Exported(), time.perf_counter() - started)
        return usual, others, kind

    def _key(self, module: torch.nn.Module, data: Outputs, given: Outputs, unusual: Pairs) -> str:
        """Return the key of the references; "" if what they depend on is not known."""
        programs = self.job.captures(self.contract)
        if not artifact_cache.is_allowed(self.job.options) or not all(file.is_file() for file in programs):
            return ""
        files = _files(module)
        if files is None:
            return ""
        return artifact_cache.digest(
            {
                "programs": [artifact_cache.hash_of(file) for file in programs],
                "files": sorted({artifact_cache.hash_of(file) for file in files}),
                "calls": [_hash(tensors) for tensors in (*data, *given, *(one for pair in unusual for one in pair))],
                "cases": len(data),
                **artifact_cache.surroundings(self.job.options),
            }
        )

    def _read(self, file: Path, outputs: Outputs) -> list[Tensors] | None:
        """Return the references in a file; None if they do not belong to these outputs."""
        with contextlib.suppress(Exception):  # a broken file can raise anything
            stored, _ = tensor_files.read(file)
            found = [tuple(stored[f"{i}.{k}"] for k in range(len(one))) for i, one in enumerate(outputs)]
            if all(perturbations.settled(*both, self.tolerance) for both in zip(outputs, found, strict=True)):
                return found
        return None


def _files(module: torch.nn.Module) -> set[Path] | None:
    """Return the source files of the module's classes and of all imported code that is not installed.

    Returns None if a class is not from a file.
    """
    try:
        own = {Path(inspect.getfile(kind)) for kind in {type(part) for part in module.modules()}}
    except (OSError, TypeError):
        return None
    if not all(file.is_file() for file in own):
        return None
    imported = {str(getattr(one, "__file__", None) or "") for one in list(sys.modules.values())}
    others = {Path(name) for name in imported if name.endswith(".py") and not name.startswith((*INSTALLED, OURS))}
    return own | {file for file in others if file.is_file()}


def _hash(tensors: Tensors) -> str:
    """Return a hash of dtypes, shapes and values."""
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        made.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
