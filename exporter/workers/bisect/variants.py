"""Building a variant of a module, in the same way as its export, and counting the builds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import fx

from exporter import targets
from exporter.core.contract_records import Contract, TensorSpec
from exporter.model import capture
from exporter.model.flattening import FlatGraph, dtype_name
from exporter.model.tensors import Run, Tensors
from exporter.workers.bisect import native


@dataclass
class Builder:
    """Builds one variant. `program` is what the variant is exported from, and `count` the number of builds.

    With `runner`, the path of exporter-run, what was built runs in C++, and `twin` is the same in Python. Each call may
    take `timeout` seconds.
    """

    program: capture.Program
    target: str
    options: targets.Options
    folder: Path
    count: int = 0
    built: Path | None = None  # the last artifact, and what its export reported
    exported: targets.Exported | None = None
    runner: Path | None = None
    twin: Run | None = None
    timeout: float = 600.0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def again(self) -> Run:
        """Build the whole variant again, as the export did."""
        return self._build(self.program)

    def part(self, module: fx.GraphModule, inputs: Tensors | None = None) -> Run:
        """Build the variant of a part of the program, which takes the program's inputs and keeps its dynamic sizes.

        Given `inputs`, the part takes tensors like these instead, and all sizes are fixed.
        """
        function = self.program.function
        taken = function.inputs
        if inputs is not None:
            names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
            pairs = zip(names, inputs, strict=True)
            taken = tuple(TensorSpec(name, dtype_name(one.dtype), tuple(one.shape)) for name, one in pairs)
        contract = replace(
            function,
            inputs=taken,
            outputs=tuple(_outputs(module)),
            symbols=function.symbols if inputs is None else {},
            constants={},
            state=None,
        )
        program = capture.Program(
            contract,
            self.program.device,
            make_module=lambda: FlatGraph(module).eval(),
            make_example=lambda: self.program.example if inputs is None else inputs,
            exported_file=None,
            make_samples=(lambda: self.program._samples) if inputs is None else (lambda: ([], [inputs])),
            part_of=self.program.exported,
        )
        return self._build(program)

    def _build(self, program: capture.Program) -> Run:
        self.count += 1
        route = targets.get(self.target)
        if targets.is_live(targets.Variant(self.target, self.options.variant, self.options.precision)):
            torch._dynamo.reset()
            return targets.live(self.target).live(program, self.options).run
        name = targets.Variant(self.target, self.options.variant, self.options.precision).artifact
        place = self.folder / str(next(self._numbers))  # has the artifact's own name, and its companions beside it
        place.mkdir(parents=True)
        self.built = place / name
        self.exported = route.export(program, self.built, self.options)
        return self.load(self.built)

    def load(self, path: Path) -> Run:
        """Load an artifact, in Python or in C++."""
        route = targets.get(self.target)
        run = route.load(path, self.options).run
        if self.runner is None:
            return run
        self.twin = run
        return native.load(self.runner, path, route.read_contract, self.options, self.timeout)

    def plain(self, text: str) -> str:
        """Return a message without the folder of the last artifact, which differs from build to build."""
        return text.replace(f"{self.built.parent}/", "") if self.built else text

    def in_python(self, inputs: Tensors, eager: Tensors) -> Tensors:
        """Return what results in C++ are compared with: those of Python. Without `runner`, these are eager's."""
        found = call(self.twin, inputs, self.options.device) if self.runner and self.twin else eager
        return eager if isinstance(found, str) else found


def _outputs(module: fx.GraphModule) -> Sequence[TensorSpec]:
    (results,) = module.graph.output_node().args
    assert isinstance(results, (tuple, list))
    values = [node.meta["val"] for node in results if isinstance(node, fx.Node)]
    return [
        TensorSpec(f"output_{index}", dtype_name(value.dtype), (None,) * value.dim())
        for index, value in enumerate(values)
    ]


def call(run: Run, inputs: Tensors, device: str) -> Tensors | str:
    """Run on copies of the inputs. Returns the outputs on the CPU, or the error's text."""
    try:
        with torch.no_grad():
            return tuple(one.detach().cpu() for one in run(tuple(t.to(device, copy=True) for t in inputs)))
    except Exception as error:  # whatever an artifact raises
        return str(error).strip() or type(error).__name__


def names(contract: Contract) -> tuple[str, ...]:
    """Return the names of the outputs."""
    return tuple(spec.name for spec in contract.outputs)
