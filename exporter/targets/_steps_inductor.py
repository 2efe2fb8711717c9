"""Where the kernels that inductor generates come from, by its own provenance."""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core.profile_records import Origin, Steps, aligned
from exporter.model import origins, steps

if TYPE_CHECKING:
    from torch import fx

    from exporter.model.tensors import Run, Tensors

# `cpp.enable_kernel_profile` makes kernels known to torch.profiler; the other one keeps which nodes they compute.
SETTINGS = {"cpp.enable_kernel_profile": True, "trace.provenance_tracking_level": 1}
INFORMATION = "kernel_information.json"
COMPANION = ".kernels.json"
SEVERAL = "the package has several entries, so its kernels are matched with lines only by the names of operators"
# Kernels of torch that inductor chooses for their speed. Other operators of torch are those that it cannot compile.
CHOSEN = ("addmm", "mm", "bmm", "baddbmm", "linear", "conv", "attention", "qlinear", "qconv", "mkl", "embedding")
_GRAPH = re.compile(r"^graph_\d+_")
_KERNEL = re.compile(r":(\d+)$")


@dataclass(frozen=True)
class Kernels:
    """The kernels of a compiled graph in the order of their calls, and the origins of each."""

    names: list[str]
    origins: list[tuple[Origin, ...]]

    def explain(self, events: Sequence[Any]) -> list[tuple[Origin, ...]]:
        """Return the origins of the profiler's events."""
        at = aligned([plain(name) for name in self.names], [plain(event.name) for event in events])
        return [() if index is None else self.origins[index] for index in between(at, len(self.names))]


def between(at: Sequence[int | None], known: int) -> list[int | None]:
    """Fill gaps: what has no counterpart by name takes its turn among the kernels between the neighbours that have one.

    Libraries such as cuBLAS have their own names for the kernels of an operator.
    """
    found, index = list(at), 0
    while index < len(found):
        if found[index] is not None:
            index += 1
            continue
        end = next((later for later in range(index, len(found)) if found[later] is not None), len(found))
        low = found[index - 1] + 1 if index else 0  # type: ignore[operator]
        high = found[end] if end < len(found) else known
        assert high is not None
        if high > low:
            found[index:end] = [low + turn * (high - low) // (end - index) for turn in range(end - index)]
        else:
            found[index:end] = [max(low - 1, 0) if known else None] * (end - index)
        index = end
    return found


def of(
    information: Mapping[str, Mapping[str, Any]], graph: Mapping[str, Sequence[str]], known: Mapping[str, Origin]
) -> Kernels:
    """Return the kernels of a graph, given what inductor says of them and where the graph's nodes come from."""
    ordered = sorted(information, key=lambda name: int(_KERNEL.search(name)[1]))  # type: ignore[index]
    owned = origins.claimed([information[name]["pre_grad_nodes"] for name in ordered], graph)
    return Kernels(
        [_KERNEL.sub("", name) for name in ordered],
        [tuple(known[one] for one in nodes if one in known) for nodes in owned],
    )


def plain(name: str) -> str:
    """Return a kernel's name as it is both in inductor's files and in the profiler's events."""
    name = _GRAPH.sub("", name).removesuffix(".default").removesuffix(".out")
    return name.rpartition("::")[2].rpartition(".")[2]


def is_fallback(name: str) -> bool:
    """Return whether inductor called an operator of torch because it cannot compile it."""
    return name.startswith(("aoti_torch_", "aten::", "torchvision::")) and not any(one in name for one in CHOSEN)


@contextlib.contextmanager
def noting(note: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Compile with SETTINGS, and pass inductor's information on the kernels of each graph to `note`."""
    from torch._inductor import config, debug

    dump = debug.dump_inductor_provenance_info

    def collect() -> dict[str, Any]:
        note(debug.create_kernel_information_json())
        found = dump()
        # Backward graphs are compiled outside the scope that empties these, and would repeat each other's kernels.
        debug._inductor_triton_kernel_to_post_grad_node_info.clear()
        debug._inductor_kernel_stack_trace.clear()
        return found

    patched: Any = debug
    with config.patch(SETTINGS):
        patched.dump_inductor_provenance_info = collect
        try:
            yield
        finally:
            patched.dump_inductor_provenance_info = dump


@dataclass
class Instrumented:
    """What torch.compile compiled while it was watched: graphs, and inductor's information on their kernels."""

    graphs: list[tuple[dict[str, tuple[str, ...]], dict[str, Origin]]] = field(default_factory=list)
    information: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Compile with SETTINGS, and note what is compiled."""
        from torch._inductor import config

        with config.patch({"pre_grad_custom_pass": self._see}), noting(self.information.append):
            yield

    def _see(self, graph: fx.Graph) -> None:
        self.graphs.append((origins.inputs(graph), {node.name: origins.of(node) for node in graph.nodes}))

    def kernels(self) -> Kernels:
        """Return the kernels of all graphs, in the order in which they were compiled."""
        found = [of(said, *graph) for said, graph in zip(self.information, self.graphs, strict=False)]
        return Kernels([name for one in found for name in one.names], [own for one in found for own in one.origins])


def save(package: Path, graph: fx.Graph) -> None:
    """Write the kernels of a package to its companion file, by the information in the package."""
    with zipfile.ZipFile(package) as archive:
        files = [name for name in archive.namelist() if name.endswith(f"/{INFORMATION}")]
        information = json.loads(archive.read(files[0])) if len(files) == 1 else {}
    made = of(information, origins.inputs(graph), {node.name: origins.of(node) for node in graph.nodes})
    rows = [
        [name, [[one.module, one.place, one.node] for one in own]]
        for name, own in zip(made.names, made.origins, strict=True)
    ]
    Path(f"{package}{COMPANION}").write_text(json.dumps(rows), encoding="utf-8")


def read(package: Path) -> Kernels | None:
    """Read the companion file of a package; None if it has none."""
    file = Path(f"{package}{COMPANION}")
    if not file.is_file():
        return None
    rows = json.loads(file.read_text(encoding="utf-8"))
    return Kernels([name for name, _ in rows], [tuple(Origin(*one) for one in own) for _, own in rows])


def record(source: Path | Instrumented, run: Run, device: str, inputs: Tensors, runs: int) -> Steps:
    """Return the typical call of a package, or of what torch.compile compiled, with the origins of its steps."""
    kernels = read(source) if isinstance(source, Path) else source.kernels()
    package_on_gpu = isinstance(source, Path) and device != "cpu"
    record = steps.record_kernels if package_on_gpu else steps.record
    found = record(run, inputs, device, runs, kernels.explain if kernels else None)
    marked = tuple(replace(one, fallback=is_fallback(one.name)) for one in found.steps)
    return replace(found, steps=marked, notes=() if kernels else (SEVERAL,))


def settings(device: str) -> dict[str, Any]:
    """Return inductor's settings for a profile. On a GPU the profiler sees kernels without them."""
    return SETTINGS if device == "cpu" else {"trace.provenance_tracking_level": 1}
