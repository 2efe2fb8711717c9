"""Writing a program that shows the failure by itself, and a text for an upstream issue."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from exporter.model.tensors import Tensors
from exporter.targets import Options, _inductor, _ort_level
from exporter.targets import compile as compile_target
from exporter.workers.bisect import Bisection
from exporter.workers.bisect.variants import Builder

SCRIPT, ISSUE = "repro.py", "issue.md"
OURS = "# Written by exporter bisect:"
SECONDS = 180
BUILDS = {
    "compile": """\
        import torch._inductor
        program = torch.export.export(module, inputs)
        path = torch._inductor.aoti_compile_and_package(program, inductor_configs={settings})
        return torch._inductor.aoti_load_package(path)(*inputs)""",
    "onnx": """\
        import onnxruntime
        model = torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{level}
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        given = {{name: one.numpy() for name, one in zip(names, inputs)}}
        return tuple(map(torch.as_tensor, session.run(None, given)))""",
    "trace": """\
        return torch.jit.freeze(torch.jit.trace(module, inputs, check_trace=False))(*inputs)""",
    "script": """\
        return torch.jit.freeze(torch.jit.script(module))(*inputs)""",
    "export": """\
        return torch.export.export(module, inputs).module()(*inputs)""",
}
LIVE = """\
        return torch.compile(module, backend={backend!r}, {how})(*inputs)"""

# Runs a script that compiles once: precompiling headers for it takes longer than it saves.
QUICKLY = """\
import runpy, sys
from torch._inductor import config
config.cpp_cache_precompile_headers = config.aot_inductor.precompile_headers = False
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def write(found: Bisection, module: fx.GraphModule, inputs: Tensors, builder: Builder, out: Path) -> tuple[str, ...]:
    """Write `repro.py` and `issue.md` to the folder `out`, and return their names.

    Writes nothing for a part that cannot be written as a script, or if the folder has a `repro.py` of somebody else.

    The script has random inputs and weights like the real ones. A note in it says whether it fails by itself.
    """
    made = _script(found, module, inputs, builder.target, builder.options)
    path = out / SCRIPT
    if made is None or (path.exists() and not path.read_bytes().startswith(OURS.encode())):
        return ()
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(made, encoding="utf-8")
    done = _ran(path)
    (out / ISSUE).write_text(_issue(found, made, done), encoding="utf-8")
    return SCRIPT, ISSUE


@dataclass(frozen=True)
class _Done:
    """How the script ended: whether it shows the failure, and what it printed."""

    shows: bool
    said: str


def _ran(path: Path) -> _Done:
    command = [sys.executable, "-c", QUICKLY, path.name]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _Done(False, f"it was stopped after {SECONDS} s")
    last = done.stderr.strip().splitlines()[-1:]
    shows = done.returncode == 1 and "AssertionError: " in done.stderr
    return _Done(shows, done.stdout.strip() or "".join(last))


def _script(found: Bisection, module: fx.GraphModule, inputs: Tensors, target: str, options: Options) -> str | None:
    flat = _flat(module, packets=target == "script")
    build = _build(target, options)
    if flat is None or build is None:
        return None
    graph, weights = flat
    code = graph.python_code("self").src
    body = textwrap.indent(textwrap.dedent(_clean(code)), "    ")
    lines = [
        f"{OURS} {found.variant}",
        *textwrap.wrap(found.sentence, 110, initial_indent="# ", subsequent_indent="# "),
        "import torch",
        "from torch import device, inf, nan",
        "",
        "torch.manual_seed(0)",
        "",
        "",
        "class Module(torch.nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        self.register_buffer({name!r}, {_like(tensor)})" for name, tensor in weights.items()),
        "",
        body.rstrip(),
        "",
        "",
        "def variant(module, inputs):",
        textwrap.indent(textwrap.dedent(build), "    "),
        "",
        "",
        "module = Module().eval()",
        f"inputs = ({''.join(_like(one) + ', ' for one in inputs)})",
        "with torch.no_grad():",
        "    expected, actual = module(*inputs), variant(module, inputs)",
        "for one, other in zip(expected, actual):",
        "    print((one.double() - other.double()).abs().max().item())",
        "    torch.testing.assert_close(other, one)",
    ]
    return "\n".join(lines) + "\n"


def _clean(code: str) -> str:
    """Remove the frees that fx adds to each line."""
    lines = [line.partition(";  ")[0] for line in code.splitlines()]
    return "\n".join(line for line in lines if line.strip())


def _build(target: str, options: Options) -> str | None:
    """Return the code that builds the variant with the same options; None if a few lines cannot do that."""
    if options.fallback or options.session_options:
        return None
    settings, setting = _inductor.parse(options.inductor) if options.inductor else {}, options.variant
    if not setting:
        build = BUILDS.get(target)
        level = _ort_level.NAMES[_ort_level.asked(options)]
        return build and build.format(settings={"freezing": True} | settings, level=level)
    if setting not in compile_target.MODES:
        return LIVE.format(backend=setting.removeprefix("backend="), how="mode=None")
    if not settings:
        return LIVE.format(backend="inductor", how=f"mode={setting!r}")
    return LIVE.format(backend="inductor", how=f"options={torch._inductor.list_mode_options(setting) | settings!r}")


def _flat(module: fx.GraphModule, packets: bool) -> tuple[fx.Graph, dict[str, torch.Tensor]] | None:
    """Return the graph with weights called w0, w1, …, and the weights; None if the graph has others inside.

    With `packets`, it calls operators by their names without overloads, as TorchScript requires.
    """
    graph, copies, weights = fx.Graph(), dict[fx.Node, fx.Node](), dict[str, torch.Tensor]()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            if not isinstance(value, torch.Tensor):
                return None
            name = f"w{len(weights)}"
            weights[name] = value.detach()
            copies[node] = graph.get_attr(name)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].type = None
            if packets and isinstance(node.target, torch._ops.OpOverload):
                copies[node].target = node.target.overloadpacket
    return graph, weights


def _like(tensor: torch.Tensor) -> str:
    """Return an expression for a random tensor of the same shape, dtype and range."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if tensor.device.type != "cpu":
        return f"({_like(tensor.cpu())}).to({tensor.device.type!r})"
    if dtype is torch.bool:
        return f"torch.rand({shape}) < {tensor.float().mean().item() if tensor.numel() else 0:.3g}"
    if not tensor.is_floating_point():
        low, high = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
        return f"torch.randint({low}, {high}, {shape}, dtype={dtype})"
    values = tensor.double()
    finite = values[values.isfinite()]
    mean, spread = (float(finite.mean()), float(finite.std())) if finite.numel() > 1 else (float(finite.sum()), 0.0)
    if finite.numel() and finite.min() >= 0 and spread:
        return f"(torch.rand({shape}) * {float(finite.max()):.4g}).to({dtype})"
    return f"(torch.randn({shape}) * {spread:.4g} + {mean:.4g}).to({dtype})"


def _issue(found: Bisection, script: str, done: _Done) -> str:
    node = found.nodes[0] if found.nodes else None
    named = f"`{node.operator}`" if node else "a part of the graph"
    shows = "It fails:" if done.shows else "It does not fail with random values:"
    return f"""\
# {found.variant}: wrong result of {named}

{found.sentence[:1].upper()}{found.sentence[1:]}.

```python
{script.rstrip()}
```

{shows}

```
{done.said}
```

torch {torch.__version__}, Python {sys.version.split()[0]}, {sys.platform}.
"""
