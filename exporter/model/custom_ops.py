"""Operators outside torch's own: the namespaces that an artifact calls, and the libraries that register them.

An artifact contains calls of such operators but not their code: a process that loads it, in Python or C++, must
register them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import causes
from exporter.core.errors import ArtifactError, Blame, UsageError

if TYPE_CHECKING:
    import torch

# Namespaces that LibTorch registers or that are part of TorchScript.
OWN = frozenset((
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_quantized", "aten", "c10d", "c10d_functional",
    "cuda", "export", "higher_order", "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn",
    "onnx", "prepacked", "prim", "prims", "profiler", "quantization", "quantized", "rngprims", "sparse",
    "static_runtime", "streams", "symm_mem",
))  # fmt: skip
# File of the library within the package named like the namespace: in newer releases, then in older ones.
LIBRARIES = {"torchvision": ("_C_stable.so", "_C.so")}

REMEDY = (
    "give the library that registers them: --ops-lib FILE, in Python torch.ops.load_library(FILE); operators defined "
    "in Python (torch.library.custom_op) have no library: let the model call their functions as plain Python"
)
GIVE = "give the library that registers the operator, --ops-lib FILE, or import its package in the recipe"


def of_script(module: torch.jit.ScriptModule) -> tuple[str, ...]:
    """Return the namespaces outside torch that the module's forward calls, sorted."""
    return _outside(kind.partition("::")[0] for kind in _kinds(module.inlined_graph))


def _kinds(block: Any) -> Iterator[str]:
    """Yield the kinds of all nodes of a graph or block, including those in its branches, loops and forks."""
    for node in block.nodes():
        yield node.kind()
        inner = [node.g(name) for name in node.attributeNames() if node.kindOf(name) == "g"]
        for part in (*node.blocks(), *inner):
            yield from _kinds(part)


def of_exported(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return the namespaces outside torch that the program calls, sorted."""
    import torch
    from torch import fx

    nodes = [
        node
        for module in program.graph_module.modules()  # branches are separate modules
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
    called = (part for node in nodes for part in (node.target, *node.args))  # higher-order operators take operators
    return _outside(part.namespace for part in called if isinstance(part, torch._ops.OpOverload))


def _outside(namespaces: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(namespaces) - OWN))


def library(namespace: str) -> Path | None:
    """Return the installed library that registers a namespace, without importing its package; None if unknown."""
    if namespace not in LIBRARIES:
        return None
    spec = importlib.util.find_spec(namespace)
    folders = spec.submodule_search_locations if spec else None
    files = (Path(folder) / name for folder in folders or () for name in LIBRARIES[namespace])
    return next((file for file in files if file.is_file()), None)


def runner_words(namespaces: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return `--ops-lib FILE` for the user's libraries and the known libraries of these namespaces."""
    files = [*given, *map(str, filter(None, map(library, namespaces)))]
    return [word for file in files for word in ("--ops-lib", file)]


def load(file: str | Path) -> None:
    """Load a library of operators into this process. Raises UsageError if that fails."""
    import torch

    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be loaded as a library of operators: {error}", "build it for this torch and this machine"
        ) from error


def require(namespaces: Iterable[str]) -> None:
    """Register the operators of these namespaces. Raises ArtifactError if no known library registers one."""
    for namespace in namespaces:
        if _registered(namespace):
            continue
        file = library(namespace)
        if file is None:
            raise ArtifactError(
                f"the artifact calls operators of {namespace}, which are not registered here",
                REMEDY,
                Blame("custom-operator-not-registered", {"op": f"of {namespace}"}),
            )
        load(file)


def registered() -> set[str]:
    """Return the namespaces of known libraries that are registered in this process."""
    return set(filter(_registered, LIBRARIES))


def import_packages(namespaces: Iterable[str]) -> None:
    """Import the packages of known libraries that are not registered; a model may do so only when it is called.

    A package registers more than its library: the fake kernels that torch.export needs.
    """
    for namespace in namespaces:
        if namespace in LIBRARIES and not _registered(namespace):
            importlib.import_module(namespace)


def is_missing(error: BaseException) -> bool:
    """Return whether the model's code failed because an operator is not registered. The remedy is `GIVE`."""
    cause = causes.find(str(error))
    return cause is not None and cause.name == "custom-operator-not-registered"


def _registered(namespace: str) -> bool:
    import torch

    return any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())
