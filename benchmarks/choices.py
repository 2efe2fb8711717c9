"""Compare build choices with exporter's defaults, for BERT or ResNet-18 at batch 1.

trace: torch.jit.optimize_for_inference, channels-last. compile: without freezing, channels-last, max-autotune. onnx:
the levels of graph optimization, half the threads. The time to read the weights when no cache holds them is measured
too. All are timed in one rotation in one process, and their outputs are compared with eager's. A choice that is faster
and right should become exporter's default.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _plain import Flat, onnx, program
from _reading import multiplied
from _timed import rotate, settings

from exporter.evidence import stats

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[], Any]
DEFAULTS = {"trace": "trace", "compile": "compile", "onnx": "onnx"}
READING = "reading as many numbers as the weights are"  # a lower bound for any call in float32
LEVELS = {"no": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED"}


def main() -> None:
    """Build and compare all choices; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-budget", type=float, default=4, help="seconds of timing per choice")
    parser.add_argument("--no-autotune", action="store_true", help="skip max-autotune, which takes minutes")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    print("| choice | median | speed-up over the default | largest difference from eager |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, settings(arguments.device, arguments.threads, folder) as scratch:
        for line in compare(arguments.model, arguments, scratch):
            print(f"| {line} |", flush=True)


def compare(name: str, arguments: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Yield a table row for each choice."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.eval().requires_grad_(False).to(arguments.device)
    inputs = tuple(tensor.to(arguments.device) for tensor in inputs)
    with torch.no_grad():
        expected = flat(model(*inputs))
        calls: dict[str, Run] = {"eager": lambda: model(*inputs), READING: partial(torch.sum, weights(model))}
        differences: dict[str, float] = {}
        for choice, build in choices(model, inputs, arguments, folder):
            try:
                calls[choice] = build()
                got = flat(calls[choice]())
            except Exception as error:
                calls.pop(choice, None)
                yield f"{choice} | {type(error).__name__}: {str(error).splitlines()[0][:80]} | | "
                continue
            pairs = zip(got, expected, strict=True)
            differences[choice] = max(float((a.cpu() - b.cpu()).abs().max()) for a, b in pairs)
        rows = rotate(calls, arguments.time_budget, "eager", arguments.device)
    for choice, row in rows.items():
        if "error" in row:
            yield f"{choice} | {row['error']} | | "
            continue
        default = DEFAULTS.get(choice.partition(" ")[0], "eager")
        medians = [stats.median(window) for window in row["windows"]]
        low, high = stats.ratio_interval(rows[default]["windows"], row["windows"])
        over = (
            ""
            if choice == default
            else f"{stats.ratio(rows[default]['windows'], row['windows']):.2f}x ({low:.2f}…{high:.2f})"
        )
        far = f"{differences[choice]:.1e}" if choice in differences else ""
        yield f"{choice} | {stats.median(medians):.3g} ms | {over} | {far}"


def weights(model: torch.nn.Module) -> torch.Tensor:
    """Return as many numbers as a call reads."""
    return torch.ones(multiplied(model), device=next(model.parameters()).device)


def choices(
    model: torch.nn.Module, inputs: Tensors, arguments: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """Yield each choice with the function that builds it; the default of each target comes first."""
    convolves = any(isinstance(inner, torch.nn.Conv2d) for inner in model.modules())
    layouts = {"": model} | ({" channels-last": ChannelsLast(model)} if convolves else {})
    for layout, module in layouts.items():
        yield f"trace{layout}", partial(traced, module, inputs)
        yield f"trace{layout} optimize_for_inference", partial(traced, module, inputs, torch.jit.optimize_for_inference)
    configurations: dict[str, dict[str, Any]] = {"": {"freezing": True}, " unfrozen": {}}
    if not arguments.no_autotune:
        configurations[" max-autotune"] = {"freezing": True, "max_autotune": True}
    if arguments.device == "cpu":
        for configuration in configurations.values():
            configuration["cpp.dynamic_threads"] = True
    for layout, module in layouts.items():
        for suffix, configuration in configurations.items():
            path = folder / f"model{layout}{suffix}.pt2".replace(" ", "_")
            yield f"compile{layout}{suffix}", partial(compiled, module, inputs, path, configuration)
    path = folder / "model.onnx"
    onnx(program(model, inputs), path)
    yield "onnx", partial(session, path, inputs, arguments, "ENABLE_ALL", arguments.threads)
    for name, level in LEVELS.items():
        yield f"onnx {name} optimization", partial(session, path, inputs, arguments, level, arguments.threads)
    if arguments.device == "cpu" and arguments.threads > 1:
        half = arguments.threads // 2
        yield (
            f"onnx {half} of {arguments.threads} threads",
            partial(session, path, inputs, arguments, "ENABLE_ALL", half),
        )


class ChannelsLast(torch.nn.Module):
    """A model with weights and images in channels-last, whatever the layout of its input."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).to(memory_format=torch.channels_last)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(image.contiguous(memory_format=torch.channels_last))
        return output


def traced(module: torch.nn.Module, inputs: Tensors, then: Callable[[Any], Any] = lambda made: made) -> Run:
    """Build what exporter's target trace makes, passed through `then`."""
    made = then(torch.jit.freeze(torch.jit.trace(module.eval(), inputs, check_trace=False).eval()))
    for _ in range(4):  # TorchScript profiles and compiles in its first calls
        made(*inputs)
    return lambda: made(*inputs)


def compiled(module: torch.nn.Module, inputs: Tensors, path: Path, configuration: dict[str, Any]) -> Run:
    """Compile a package with AOTInductor."""
    torch._inductor.aoti_compile_and_package(
        program(module.eval(), inputs), package_path=str(path), inductor_configs=configuration
    )
    loaded = torch._inductor.aoti_load_package(str(path))
    return lambda: loaded(*inputs)


def session(path: Path, inputs: Tensors, arguments: argparse.Namespace, level: str, threads: int) -> Run:
    """Open an ONNX model in onnxruntime."""
    import onnxruntime as ort  # after exporter, which disables its telemetry

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    cuda = [("CUDAExecutionProvider", {"use_tf32": 0})] if arguments.device != "cpu" else []
    model = ort.InferenceSession(str(path), options, providers=[*cuda, "CPUExecutionProvider"])
    feed = {one.name: tensor.cpu().numpy() for one, tensor in zip(model.get_inputs(), inputs, strict=True)}
    return lambda: model.run(None, feed)


def flat(outputs: Any) -> Tensors:
    """Return the outputs of any choice as a tuple of tensors."""
    return tuple(torch.as_tensor(one) for one in ([outputs] if isinstance(outputs, torch.Tensor) else outputs))


def bert() -> tuple[torch.nn.Module, Tensors]:
    """Return BERT base with a sequence of 14."""
    from transformers import BertConfig, BertModel

    ids, ones = torch.randint(1000, 30000, (1, 14)), torch.ones(1, 14, dtype=torch.long)
    return Flat(BertModel(BertConfig())), (ids, ones, ones - 1)


def resnet18() -> tuple[torch.nn.Module, Tensors]:
    """Return ResNet-18 with one image of 224 x 224."""
    import torchvision

    return torchvision.models.resnet18(), (torch.randn(1, 3, 224, 224),)


MODELS = {"bert": bert, "resnet18": resnet18}

if __name__ == "__main__":
    main()
