"""References in float64 from an earlier run, because in float64 a large model takes longer than all else of its golden.

They are taken only if eager, run just now, returned the same outputs bit for bit, from the same inputs, and the
exported program, weights included, is the same byte for byte. So must be the files that define the model and what else
a result depends on. They must also agree with eager's outputs within the tolerance. Models that exist only in memory or
in the user's main script have no such files, so their references are always computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from exporter.core.contract_records import Contract
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import casts, eager, perturbations
from exporter.model import tensor_files
from exporter.model.tensors import Tensors
from exporter.targets import Exported
from exporter.workers import artifact_cache
from exporter.workers.messages import Job

INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
OURS = ("torch", "exporter")  # `artifact_cache.surroundings` has torch's version and exporter's source
LOADED = time.time()  # before any recipe is loaded in this process, or in one that is forked from it
FILE = "references.safetensors"
Outputs = Sequence[Tensors]
Pairs = Sequence[tuple[Tensors, Tensors]]


@dataclass
class References:
    """Computes references like `eager.references_also`, or takes those of an earlier run."""

    job: Job
    contract: Contract
    tolerance: OutputTolerances
    _new: tuple[str, list[Tensors], float] | None = None  # key, references, and the seconds that computing them took

    def __call__(
        self, module: torch.nn.Module, data: Outputs, given: Outputs, unusual: Pairs
    ) -> tuple[list[Tensors], list[Tensors | None], str]:
        """Return what `eager.references_also` returns. `given` has eager's outputs for the inputs `data`."""
        key, outputs = "", [*given, *(outputs for _, outputs in unusual)]
        with contextlib.suppress(OSError):  # a file that cannot be read
            key = self._key(module, data, given, unusual)
        if key and (found := self._take(key, outputs)):
            print("the references in float64 are those of an earlier run", flush=True)
            return found[: len(given)], [*found[len(given) :]], "float64"
        started = time.perf_counter()
        usual, others, kind = eager.references_also(module, data, given, unusual)
        made = [*usual, *(one for one in others if one is not None)]
        known = kind == "float64" and not casts.are_changed(module)  # a later process would not know of the change
        if key and known and self._agree(outputs, made):
            self._new = key, made, time.perf_counter() - started
        return usual, others, kind

    def keep(self) -> None:
        """Put references that were computed into the cache. A full disk only means that they are not kept."""
        if self._new is None:
            return
        key, made, seconds = self._new
        file = self.job.work / FILE
        with contextlib.suppress(OSError, SafetensorError):
            tensor_files.save({f"{i}.{k}": t for i, one in enumerate(made) for k, t in enumerate(one)}, file)
            artifact_cache.keep(key, file, Exported(), seconds)
        file.unlink(missing_ok=True)

    def _take(self, key: str, outputs: Outputs) -> list[Tensors]:
        """Return the references with this key; none if they do not belong to these outputs."""
        file = self.job.work / FILE
        if not artifact_cache.take(key, file):
            return []
        with contextlib.suppress(Exception):  # a broken file can raise anything
            stored, _ = tensor_files.read(file)
            file.unlink()
            found = [tuple(stored[f"{i}.{k}"] for k in range(len(one))) for i, one in enumerate(outputs)]
            if self._agree(outputs, found):
                return found
        artifact_cache.forget(key)
        return []

    def _agree(self, outputs: Outputs, references: Outputs) -> bool:
        pairs = zip(outputs, references, strict=False)
        return len(outputs) == len(references) and all(perturbations.settled(*pair, self.tolerance) for pair in pairs)

    def _key(self, module: torch.nn.Module, data: Outputs, given: Outputs, unusual: Pairs) -> str:
        """Return the key of the references; "" if what they depend on is not known."""
        programs, source = self.job.captures(self.contract), self.job.source
        known = artifact_cache.is_allowed(self.job.options) and all(file.is_file() for file in programs)
        files = _files(module) if known and source.kind != "memory" else None
        if files is None:
            return ""
        named = map(Path, (source.place, source.attribute, source.inputs_file, *self.job.options.ops_libs))
        files |= {file for file in named if file.is_file()}
        if any(file.stat().st_mtime > LOADED for file in files):  # what was loaded may be something else
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


def _files(module: torch.nn.Module) -> set[Path] | None:
    """Return the source files of the packages of the module's classes, and of all imported code that is not installed.

    torch's and exporter's own are left out. Returns None if a class is not from a file, or is from the main script.
    """
    kinds = {type(part) for part in module.modules()}
    try:
        found = {Path(inspect.getfile(kind)) for kind in kinds}
    except (OSError, TypeError):
        return None
    if any(kind.__module__ == "__main__" for kind in kinds) or not all(file.is_file() for file in found):
        return None
    packages = {kind.__module__.partition(".")[0] for kind in kinds}
    for name, one in list(sys.modules.items()):
        file, package = str(getattr(one, "__file__", None) or ""), name.partition(".")[0]
        if package not in OURS and (package in packages or not file.startswith(INSTALLED)) and file.endswith(".py"):
            found.add(Path(file))
    return {file for file in found if file.is_file()}


def _hash(tensors: Tensors) -> str:
    """Return a hash of dtypes, shapes and values."""
    made = hashlib.sha256()
    for tensor in tensors:
        made.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        made.update(tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
