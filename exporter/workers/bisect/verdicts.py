"""Naming the cause of an error that a part of the program shows by itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from exporter import targets
from exporter.core import causes
from exporter.model.tensors import Tensors
from exporter.targets import _inductor, _ort_level
from exporter.workers.bisect import Verdict, arithmetic, variants

# Parts of inductor that can be switched off, and the settings that do so.
SUBSYSTEMS: dict[str, dict[str, Any]] = {
    "its vectorized code": {"cpp.simdlen": 1},
    "its packed weights": {"cpp.weight_prepack": False},
    "its pattern replacements": {"pattern_matcher": False},
    "its fusion of epilogues": {"epilogue_fusion": False},
    "its fusion of kernels": {"max_fusion_size": 1},
}
# Backends of torch.compile that run ever more of what inductor does before it generates code.
LADDER = {"aot_eager": "torch's functionalization", "aot_eager_decomp_partition": "inductor's decompositions"}
SIMILAR = 3.0  # two errors within this factor are taken to have the same cause


def settings(target: str, options: targets.Options, blamed: Sequence[str] = ()) -> dict[str, targets.Options]:
    """Return the options that --fix tries, by what to call them.

    Each changes a setting of inductor, leaves an operator of `blamed` to torch, or lowers the level of onnxruntime's
    graph optimizations. If a single operator is blamed, torch's kernel comes first, because it changes least.
    Settings for C++ apply only to a CPU, and a backend of torch.compile may have none.
    """
    if target == "onnx":
        levels = _ort_level.lower(options)
        return {f"graph optimization {level}": replace(options, graph_optimization=level) for level in levels}
    if target != "compile" or "=" in options.variant:
        return {}
    known = _inductor.known()
    frozen = {"freezing": False} if not options.variant else {}  # packages alone freeze their weights
    pairs = [pair for one in (frozen, *SUBSYSTEMS.values()) for pair in one.items()]
    names = {name for name in known if options.device == "cpu" or not name.startswith("cpp.")}
    words = [f"{name}={value}" for name, value in pairs if name in names]
    changed = {one: replace(options, inductor=(*options.inductor, one)) for one in words}
    left = {
        f"torch's kernel of {name}": replace(options, fallback=(*options.fallback, name))
        for name in (blamed if not options.variant else ())
    }
    return left | changed if len(left) == 1 else changed | left


@dataclass
class Part:
    """A part of the program that a variant computes wrongly: a module, and eager's values of its inputs."""

    target: str
    builder: variants.Builder
    module: fx.GraphModule
    inputs: Tensors

    def __post_init__(self) -> None:
        self.own = arithmetic.eager(self.module, self.inputs)
        try:
            self.exact = arithmetic.reference(self.module, self.inputs)
        except Exception:  # an operator without float64
            self.exact = self.own
        self.got = self.build()

    def build(self) -> Tensors | str:
        """Build the part in the variant's way, and run it."""
        try:
            run = self.builder.part(self.module, self.inputs)
        except Exception as error:  # whatever an export raises
            return self.builder.plain(str(error))
        self.own = self.builder.in_python(self.inputs, self.own)
        return variants.call(run, self.inputs, self.builder.program.device)

    def error(self, got: Tensors | str) -> float:
        """Return the largest error of these results, as a multiple of eager's own."""
        if isinstance(got, str):
            return float("inf")
        return max(map(arithmetic.error, got, self.own, self.exact), default=0.0)

    def is_right(self, got: Tensors | str) -> bool:
        """Return whether these results are closer to float64 than the variant's, by far."""
        return self.error(got) < max(min(math.sqrt(self.error(self.got)), 1000.0), 3.0)

    def spoils(self) -> bool:
        """Return whether the part has a NaN or an infinity that the reference lacks."""
        if isinstance(self.got, str):
            return False
        return any(
            one.is_floating_point() and bool((~one.isfinite() & exact.cpu().isfinite()).any())
            for one, exact in zip(self.got, self.exact, strict=True)
            if one.shape == exact.shape
        )

    def cause(self) -> tuple[Verdict, str]:
        """Return the verdict, and a sentence that explains it."""
        if isinstance(self.got, str):
            known = causes.find(self.got, self.target)
            return "converter", f"it fails by itself: {f'{known.sentence}: ' if known else ''}{self.got}"
        if rounding := self._precision():
            return "reduced precision", f"its error is that of operands in {rounding}"
        by_target = {"onnx": self._onnx, "compile": self._compile}
        return by_target.get(self.target, self._other)()

    def _precision(self) -> str:
        """Return the precision whose rounding of the layers' operands explains the error, or an empty string."""
        if isinstance(self.got, str) or self.builder.options.precision != "fp32":
            return ""
        layers = {node.name for node in self.module.graph.nodes if node.target in arithmetic.LAYERS}
        for rounding in arithmetic.ROUNDINGS if layers else ():
            simulated = arithmetic.lowered(self.module, self.inputs, layers, rounding)
            found = [
                (arithmetic.relative(got, exact), arithmetic.relative(like, exact), arithmetic.relative(got, like))
                for got, like, exact in zip(self.got, _on_cpu(simulated), _on_cpu(self.exact), strict=True)
                if exact.is_floating_point() and got.shape == exact.shape
            ]
            if found and all(like / SIMILAR <= mine <= like * SIMILAR and apart < mine for mine, like, apart in found):
                return rounding
        return ""

    def _other(self) -> tuple[Verdict, str]:
        how = "TorchScript" if targets.facts(self.target).portability == 3 else self.target
        return "converter", f"{how} computes it differently, by itself and with exact inputs"

    def _onnx(self) -> tuple[Verdict, str]:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        providers = ["CPUExecutionProvider"]
        if self.builder.program.device != "cpu":
            if self.is_right(self._onnx_by(lambda path: ort.InferenceSession(path, providers=providers))):
                return "compiler", "onnxruntime's kernel for CUDA: it is right on the CPU"
        elif self.is_right(self._onnx_by(lambda path: ort.InferenceSession(path, settings, providers))):
            return "compiler", "onnxruntime's graph optimizations: it is right without them"
        from onnx.reference import ReferenceEvaluator

        plain = self._onnx_by(ReferenceEvaluator)
        if isinstance(plain, str):
            return "converter", "torch.onnx or onnxruntime: ONNX's reference implementation cannot run these nodes"
        if self.is_right(plain):
            return "compiler", "onnxruntime's kernel: ONNX's reference implementation computes the same nodes correctly"
        return "converter", "torch.onnx translates it to nodes that compute something else"

    def _onnx_by(self, load: Any) -> Tensors | str:
        try:
            session = load(str(self.builder.built))
            names = [n.name if hasattr(n, "name") else n for n in _inputs(session)]
            given = {name: one.detach().cpu().numpy() for name, one in zip(names, self.inputs, strict=True)}
            return tuple(torch.as_tensor(one) for one in session.run(None, given))
        except Exception as error:  # neither implementation has every operator and type
            return str(error)

    def _compile(self) -> tuple[Verdict, str]:
        if self.builder.options.variant.startswith("backend="):
            return (
                "compiler",
                f"the backend {self.builder.options.variant.removeprefix('backend=')} computes it differently",
            )
        for backend, what in LADDER.items():
            got = self._by_backend(backend)
            if not isinstance(got, str) and not self.is_right(got):
                return "compiler", f"{what}: the backend {backend} is wrong too"
        from torch._inductor import config

        for what, settings in SUBSYSTEMS.items():
            known = {name: value for name, value in settings.items() if name in _inductor.known()}
            with config.patch(known), _fresh():
                if known and self.is_right(self.build()):
                    changed = ", ".join(f"{name}={value}" for name, value in known.items())
                    return "compiler", f"inductor, {what}: it is right with {changed}"
        return "compiler", "inductor's lowering or generated code: the decomposed graph is right"

    def _by_backend(self, backend: str) -> Tensors | str:
        torch._dynamo.reset()
        run = torch.compile(self.module, backend=backend, fullgraph=True)
        return variants.call(lambda inputs: tuple(run(*inputs)), self.inputs, self.builder.program.device)


def _on_cpu(tensors: Tensors) -> Tensors:
    return tuple(one.cpu() for one in tensors)


def _inputs(session: Any) -> Any:
    return session.get_inputs() if hasattr(session, "get_inputs") else session.input_names


@contextlib.contextmanager
def _fresh() -> Iterator[None]:
    """Compile without the caches of graphs."""
    from torch._inductor import config

    with config.patch({"fx_graph_cache": False, "force_disable_caches": True}):
        yield
