"""Plant defects in the routes of small models, and let exporter's bisection find them.

Each defect runs in its own process. Prints what was found, and exits with 1 if fewer than nine in ten are named with
the right operator and verdict. With --clean it examines BERT, ResNet-18 and ViT, where nothing must be blamed.

    python benchmarks/planted.py [NAME ...] [--clean]
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from torch import nn

from exporter import targets
from exporter.bundle import layout
from exporter.core.progress import Listener
from exporter.model import recipes
from exporter.runs import pipeline
from exporter.runs.request import Request
from exporter.workers import tasks
from exporter.workers.bisect import Asked, Bisection, child

aten = torch.ops.aten
Plant = Callable[[], contextlib.AbstractContextManager[None]]


class Net(nn.Module):
    """An encoder block, with one of each operator that the defects need."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        self.norm, self.conv = nn.LayerNorm(32), nn.Conv1d(1, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = self.norm(y + torch.tanh(self.second(y)))
        y = nn.functional.gelu(y)
        z = torch.sqrt(self.conv(y[:, None]).square().mean(1) + 1)
        y = nn.functional.silu(y) * torch.exp(-z)
        return self.third(y).softmax(-1)


class Branch(Net):
    """Chooses by the batch size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 2 if x.shape[0] > 3 else y


class Coarse(Net):
    """Has one layer with outliers in its weights, which int8 cannot represent."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.second.weight[:, 0] *= 3000


class Recipe:
    """Any of these models."""

    sizes = {"batch": (1, 8)}

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind

    def load(self, weights: str = "random") -> nn.Module:
        torch.manual_seed(0)
        return self.kind().eval()

    def inputs(self, batch: int = 2) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 16)}


plain, branch, coarse = map(Recipe, (Net, Branch, Coarse))


@contextlib.contextmanager
def none() -> Iterator[None]:
    """Plant nothing."""
    yield


def lowering(name: str, wrong: Callable[[Any], Any]) -> Plant:
    """Replace inductor's lowering of a pointwise operator: `wrong` maps inductor's `ops` to a function of a value."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        from torch._inductor import lowering
        from torch._inductor.lowering import make_pointwise, ops

        for key in (getattr(aten, name), getattr(aten, name).default):
            lowering.lowerings[key] = make_pointwise(wrong(ops))
        yield

    return plant


def decomposition(overload: Any, wrong: Callable[..., Any]) -> Plant:
    """Replace inductor's decomposition of an operator."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        from torch._inductor import decomposition

        decomposition.decompositions[overload] = wrong
        decomposition.fast_random_decomps.cache_clear()
        yield

    return plant


def onnx_node(kind: str, change: Callable[[Any, Any], None]) -> Plant:
    """Change the first node of a kind in every ONNX model that torch makes."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        usual = torch.onnx.export

        def export(*args: Any, **kwargs: Any) -> Any:
            made = usual(*args, **kwargs)
            for node in made.model.graph:
                if node.op_type == kind:
                    change(node, made.model.graph)
                    break
            return made

        torch.onnx.export = export
        yield

    return plant


def renamed(to: str) -> Callable[[Any, Any], None]:
    """Return a change that makes the node another operator's."""

    def change(node: Any, graph: Any) -> None:
        node.op_type = to

    return change


def scaled(node: Any, graph: Any) -> None:
    """Change the weights of a node by 1%."""
    import onnx_ir

    for value in node.inputs[1:2]:
        value.const_value = onnx_ir.tensor(value.const_value.numpy() * 1.01, name=value.name)


def transposed_axis(node: Any, graph: Any) -> None:
    """Let a softmax or a mean run over another axis."""
    import onnx_ir

    node.attributes["axis"] = onnx_ir.AttrInt64("axis", 0)


def tf32_addmm(bias: Any, x: Any, weight: Any, beta: float = 1, alpha: float = 1) -> Any:
    """Compute a linear layer with its operands in TF32's precision."""

    def low(value: Any) -> Any:
        return (value.contiguous().view(torch.int32) + 0x1000).bitwise_and(~0x1FFF).view(torch.float32)

    return (low(x)[:, :, None] * low(weight)[None]).sum(1) + bias


class Defect(NamedTuple):
    """A model, a variant, what is wrong, and the operators and verdicts that are right answers.

    `after` changes the exported file instead.
    """

    model: str
    variant: str
    plant: Plant
    operators: tuple[str, ...]
    verdicts: tuple[str, ...]
    after: Callable[[Path], None] | None = None


def spoiled_weight(path: Path) -> None:
    """Change one layer's weights in a file by 1%."""
    made = torch.jit.load(str(path), _extra_files=(extra := {"contract.json": ""}))
    with torch.no_grad():
        for node in made.graph.nodes():
            if node.kind() == "prim::Constant" and node.output().type().kind() == "TensorType":
                tensor = node.t("value")
                if tensor.shape == (32, 32):
                    tensor.mul_(1.01)
    torch.jit.save(made, str(path), _extra_files=extra)


def spoiled_onnx(path: Path) -> None:
    """Change one layer's weights in a file by 1%."""
    import onnx

    model = onnx.load(str(path))
    weight = next(one for one in model.graph.initializer if list(one.dims) in ([32, 32],))
    array = onnx.numpy_helper.to_array(weight) * 1.01
    weight.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), weight.name))
    onnx.save(model, str(path))


def times(name: str, factor: float) -> Plant:
    """Multiply inductor's result of a pointwise operator."""
    return lowering(name, lambda o: lambda v: o.mul(getattr(o, name)(v), o.constant(factor, torch.float32)))


def wrong_gelu(x: Any, approximate: str = "none") -> Any:
    """Compute a rough approximation."""
    return x * torch.sigmoid(1.702 * x)


def wrong_silu(x: Any) -> Any:
    """Add 0.1%."""
    return x * torch.sigmoid(x) * 1.001


def wrong_softmax(x: Any, dim: int, half: bool) -> Any:
    """Add a constant to the sum."""
    return torch.exp(x) / (torch.exp(x).sum(dim, keepdim=True) + 0.01)


def wrong_norm(x: Any, shape: Any, weight: Any, bias: Any, epsilon: float) -> Any:
    """Divide by n - 1 instead of n."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.var(-1, keepdim=True) + epsilon).sqrt() * weight + bias, mean, mean


def compiled(plant: Plant, *operators: str, variant: str = "compile") -> Defect:
    """Return a defect of inductor."""
    return Defect("plain", variant, plant, operators, ("compiler",))


def translated(kind: str, change: Callable[[Any, Any], None], operator: str) -> Defect:
    """Return a defect of the translation to ONNX."""
    return Defect("plain", "onnx", onnx_node(kind, change), (operator,), ("converter",))


ALTERED, LOWER = ("altered artifact",), ("reduced precision",)
DEFECTS = {
    "inductor-tanh": compiled(times("tanh", 1.01), "tanh"),
    "inductor-exp": compiled(times("exp", 1.001), "silu", "exp"),  # silu contains it
    "inductor-sqrt-nan": compiled(lowering("sqrt", lambda o: lambda v: o.sqrt(o.neg(v))), "sqrt"),
    "inductor-relu": compiled(lowering("relu", lambda o: lambda v: v), "relu"),
    "live-tanh": compiled(times("tanh", 0.99), "tanh", variant="compile:default"),
    "live-sqrt": compiled(times("sqrt", 1.001), "sqrt", variant="compile:default"),
    "decomposed-gelu": compiled(decomposition(aten.gelu.default, wrong_gelu), "gelu"),
    "decomposed-silu": compiled(decomposition(aten.silu.default, wrong_silu), "silu"),
    "decomposed-softmax": compiled(decomposition(aten._softmax.default, wrong_softmax), "softmax"),
    "decomposed-norm": compiled(decomposition(aten.native_layer_norm.default, wrong_norm), "layer_norm"),
    "tf32-linear": Defect("plain", "compile", decomposition(aten.addmm.default, tf32_addmm), ("linear",), LOWER),
    "onnx-tanh": translated("Tanh", renamed("Sigmoid"), "tanh"),
    "onnx-relu": translated("Relu", renamed("Identity"), "relu"),
    "onnx-sqrt": translated("Sqrt", renamed("Identity"), "sqrt"),
    "onnx-softmax": translated("Softmax", transposed_axis, "softmax"),
    "onnx-conv": translated("Conv", scaled, "conv1d"),
    "file-trace": Defect("plain", "trace", none, (), ALTERED, spoiled_weight),
    "file-onnx": Defect("plain", "onnx", none, (), ALTERED, spoiled_onnx),
    "baked-branch": Defect("branch", "trace", none, (), ("constant baked in",)),
    "int8-layer": Defect("coarse", "compile@int8", none, ("linear in second",), LOWER),
}


def examined(defect: Defect, folder: Path) -> Bisection:
    """Export with the defect and examine the variant, in this process."""
    (variant,) = targets.parse(defect.variant)
    source = recipes.find(f"{__file__}:{defect.model}")
    request = Request(
        defect.model,
        source,
        tuple(targets.parse("trace" if variant.precision == "fp32" else f"trace@{variant.precision}")),
        folder / "bundle",
        threads=1,
        bench=False,
    )
    _, place = pipeline.run(request, Listener())
    options = targets.Options(threads=1, variant=variant.setting, precision=variant.precision)
    job = dataclasses.replace(request.job(folder / "work"), options=options)
    job.work.mkdir()
    torch.set_num_threads(1)
    with defect.plant():
        path: Path | None = None
        if not targets.is_live(variant):
            path = folder / variant.artifact
            targets.get(variant.target).export(tasks.program(job, variant.target)[0], path, options)
            if defect.after:
                defect.after(path)
        asked = Asked(variant.target, variant.name, path, layout.golden(place), folder / "out")
        return child.inquire(job, asked, lambda step: print(step, file=sys.stderr))


def is_right(defect: Defect, found: dict[str, Any]) -> bool:
    """Return whether the verdict is right, and the first node the right one, in O(log N) builds."""
    node = (found["nodes"] or [{"operator": "", "module": ""}])[0]
    named = f"{node['operator'].split('.')[1] if '.' in node['operator'] else ''} in {node['module']}"
    few = found["builds"] <= 2 * math.log2(max(found["size"], 2)) + 10
    return (
        found["verdict"] in defect.verdicts
        and few
        and (not defect.operators or any(named.startswith(one) for one in defect.operators))
    )


def _run_one(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        found = examined(DEFECTS[name], Path(folder))
    print(json.dumps(dataclasses.asdict(found), default=str))


def _line(name: str, right: bool, found: dict[str, Any], seconds: float) -> str:
    node = (found["nodes"] or [{"operator": "-", "module": ""}])[0]
    where = f"{node['operator']} {node['module']}".strip()
    return (
        f"{'right' if right else 'WRONG':<6} {name:<20} {found['verdict']:<18} {where:<36} "
        f"{found['builds']:>2} builds, {found['size']:>2} nodes, {seconds:4.0f} s: {found['sentence']}"
    )


CLEAN = [(model, target) for model in ("bert", "resnet18", "vit") for target in ("compile", "onnx", "trace")]


def _clean() -> list[bool]:
    found = []
    for model, target in CLEAN:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "exporter", "bisect", model, target, "--weights", "random", "--json", "-q"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        result = json.loads(done.stdout)
        right = result["verdict"] == "rounding" and not result["nodes"]
        print(_line(f"{model} {target}", right, result, time.monotonic() - started), flush=True)
        found.append(right)
    return found


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("names", nargs=-1)
@click.option("--clean", is_flag=True)
@click.option("--one", hidden=True)
def main(names: tuple[str, ...], clean: bool, one: str | None) -> None:
    """Run the defects, each in its own process."""
    if one:
        _run_one(one)
        return
    results = _clean() if clean else []
    for name in names or (() if clean else tuple(DEFECTS)):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="planted-") as cache:  # another defect's kernels must not be reused
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
            command = [sys.executable, __file__, "--one", name]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            print(f"WRONG  {name}: {done.stderr[-1500:]}", flush=True)
            results.append(False)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        results.append(is_right(DEFECTS[name], found))
        print(_line(name, results[-1], found, time.monotonic() - started), flush=True)
    print(f"{sum(results)} of {len(results)} right")
    sys.exit(sum(results) < 0.9 * len(results))


if __name__ == "__main__":
    main()
