"""Every known cause is recognised in the real error of a model that triggers it, with the line and a remedy.

Recorded messages stand in for errors that the test machine cannot trigger, or only slowly; comments say where from.
"""

from __future__ import annotations

import copy
import functools
import linecache
import math
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from exporter.core import causes, source_lines
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import Blame, BothFailed, ExportError
from exporter.model import capture, flattening
from exporter.model.torchscript import bridge
from exporter.targets import Options, onnx

X = torch.ones(2, 4)
LENGTHS = torch.ones(1, dtype=torch.int64, device="meta")
MARK = "# here"  # marks the line that causes the error

operators = torch.library.Library("sprung", "DEF")
operators.define("without_fake(Tensor x) -> Tensor")
operators.impl("without_fake", lambda x: x.clone(), "CPU")
operators.define("without_kernel(Tensor x) -> Tensor")
operators.impl("without_kernel", lambda x: torch.empty_like(x), "Meta")
operators.define("complete(Tensor x) -> Tensor")
operators.impl("complete", lambda x: x.clone(), "CPU")
operators.impl("complete", lambda x: torch.empty_like(x), "Meta")


class Calls(nn.Module):
    """Applies a function of one tensor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(model: nn.Module, *example: torch.Tensor) -> torch.export.ExportedProgram:
    """Export the model as a run does, with fixed sizes."""
    example = example or (X,)
    flat = flattening.FlatModule(model.eval(), flattening.flatten_inputs(model, example))
    inputs = tuple(TensorSpec("x", "float32", tuple(t.shape)) for t in example)
    return capture.export_program(flat, example, Contract("m", inputs, (), {}))


def constrained(model: nn.Module, *example: torch.Tensor, **ranges: tuple[int, int]) -> None:
    """Call torch.export directly; the rows of each input have one of the `ranges`."""
    rows = tuple({0: torch.export.Dim(name, min=low, max=high)} for name, (low, high) in ranges.items())
    torch.export.export(model, example, dynamic_shapes=rows, strict=False)


def to_onnx(model: nn.Module, folder: Path) -> Path:
    file, path = folder / "exported.pt2", folder / "model.onnx"
    torch.export.save(exported(model), file)
    program = capture.Program(Contract("m", (), (), {}), "cpu", lambda: model, lambda: (X,), file)
    onnx.export(program, path, Options())
    return path


def translated(model: nn.Module, *dims: Any) -> None:
    """Call torch.onnx.export and raise the reason that it reports."""
    try:
        program = torch.export.export(model, (X,), dynamic_shapes=dims or None, strict=False)
        torch.onnx.export(program, (), dynamo=True, verbose=False)
    except Exception as error:
        raise onnx._cause(error) from None


def filter_rows(x: torch.Tensor) -> torch.Tensor:
    """Filter each row with itself, as StyleGAN filters each image with its own weights."""
    return torch.nn.functional.conv1d(x[None], x[:, None], groups=x.shape[0])


class Rounds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.sum().item() / 7, 2)  # here


def round_in_onnx(folder: Path) -> None:
    model = Rounds()
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, (X,)))
    contract = Contract("m", (TensorSpec("x", "float32", tuple(X.shape)),), (), {})
    program = capture.Program(contract, "cpu", lambda: flat, lambda: (X,), None)
    onnx.export(program, folder / "model.onnx", Options())


def traced(model: nn.Module, *example: torch.Tensor, **options: Any) -> torch.jit.ScriptModule:
    return torch.jit.trace(model, example or (X,), check_trace=False, **options)


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: math.ceil(x.shape[0] / 2)]  # here


def save_what_cannot_be_saved(folder: Path) -> None:
    rows = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(Half(), (torch.ones(7, 4),), dynamic_shapes=rows, strict=False)
    torch.export.save(program, folder / "half.pt2")


# Models. Those for torch.jit.script are classes, because it needs their source.


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x  # here


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not (x < -9).any() or (x > 9).all(), "too small"  # here
        return x


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not ((x > -9).all() and not (x > 9).any()):  # here
            raise ValueError("too small")
        return x


class Chooses(nn.Module):
    """A branch with an else, which is not a check."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x < -9).any():  # here
            x = x * 2
        return -x


class Rows(nn.Module):
    """No number is read here."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row * 2 for row in x])


class Rolls(nn.Module):
    """Read a number from a buffer, as PESTO does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(-round(self.shift.item() * 2), -1)


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x[0, 0])):  # here
            x = x + 1
        return x


class Select(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        return y if y.shape[0] > 3 else -y  # here


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]  # here


class Decodes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = 0
        while not (x > 9).all() and steps < 5:  # here
            x, steps = x + 1, steps + 1
        return x


class Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copied: nn.Linear = copy.deepcopy(self.linear)  # here
        return copied(x)  # type: ignore[no-any-return]


class Jacobians(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.func.jacrev(torch.tanh))(x)  # here


class Keys(nn.Module):
    """A mask by length."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] not in self.masks:  # here
            self.masks[x.shape[0]] = torch.ones(x.shape[0], 1)
        return x * self.masks[x.shape[0]]


class WritesData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("s", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.s.data.mul_(0.5)  # here
        return x + self.s


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3, 4)


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] < 5 else x * 2


class Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.expand(3, 2, 4).add_(1)  # here
        return x


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(x)  # here
        return self.weight * 1


class View(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().view(-1)  # here


class Device(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, device="meta")  # here


class ToNumpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)  # here


class Pointer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.data_ptr()  # here


class Opens(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()  # here
        return x


class NeedsStars(nn.Module):
    def forward(self, *x: torch.Tensor) -> torch.Tensor:  # here
        return x[0]


class SpreadsStars(nn.Module):
    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = [x, x]
        return self.add(*both)  # here


class Annotated(nn.Module):
    def forward(self, x: torch.Tensor, names: set[str] | list[str] | None = None) -> torch.Tensor:  # here
        return x


class AnnotatedSet(nn.Module):
    def forward(self, x: torch.Tensor, names: set[str]) -> torch.Tensor:  # here
        return x


class Tries(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:  # here
            return x
        except ValueError:
            return -x


class HoldsAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = object()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.settings.factor  # here


class TwoTypes(nn.Module):
    def forward(self, x: torch.Tensor, flag: bool = True) -> torch.Tensor:
        y = x if flag else None
        return y + 1  # here


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class CallsTwice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Twice.apply(x)  # here


class Eigenvalues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x @ x.t())  # here


class ComplexProduct(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).prod(-1).real  # here


class CallsCustom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.sprung.complete(x)  # here


class ToSparse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_sparse().to_dense()  # here


class Vmapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: row if row.sum() > 0 else -row)(x)  # here


def cache(x: torch.Tensor) -> Any:
    from transformers import DynamicCache

    return x, DynamicCache()


class Unknown:
    """A class that pytree does not support."""


def without_source() -> nn.Module:
    space: dict[str, Any] = {"nn": nn}
    exec("class Hidden(nn.Module):\n    def forward(self, x):\n        return x", space)
    hidden: nn.Module = space["Hidden"]()
    return hidden


def locked() -> nn.Module:
    model = nn.Linear(4, 4)
    model.lock = threading.Lock()
    return model


def float64_convolution(folder: Path) -> None:
    """onnxruntime's CPU has no convolution for float64."""
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    load_onnx(to_onnx(Calls(lambda x: torch.conv1d(x.double().unsqueeze(1), ones)), folder).read_bytes())


def run_complex_input(folder: Path) -> None:
    import numpy
    import onnxruntime

    path = to_onnx(Calls(torch.abs), folder)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: numpy.ones((2, 4), numpy.complex64)})


def small_onnx(operator: str, domain: str = "", opset: int = 18) -> bytes:
    """One operator, as an ONNX model."""
    import onnx as onnx_format

    made = functools.partial(onnx_format.helper.make_tensor_value_info, elem_type=1, shape=[2])
    node = onnx_format.helper.make_node(operator, ["x"], ["y"], domain=domain)
    graph = onnx_format.helper.make_graph([node], "g", [made("x")], [made("y")])
    opsets = [onnx_format.helper.make_opsetid("", opset), onnx_format.helper.make_opsetid("mine", 1)]
    model = onnx_format.helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    return model.SerializeToString()


def load_onnx(data: bytes) -> None:
    import onnxruntime

    onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def load_without_the_operator(folder: Path) -> None:
    """Load in a process without the operator, and raise its error again here."""
    path = folder / "custom.pt"
    torch.jit.save(traced(CallsCustom()), str(path))
    code = f"import torch, warnings; warnings.simplefilter('ignore'); torch.jit.load({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    raise RuntimeError(done.stderr.partition("RuntimeError:")[2])


def find_no_compiler() -> None:
    from torch._inductor import config, cpp_builder

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        cpp_builder.get_cpp_compiler()


def recompile_again_and_again() -> None:
    torch._dynamo.reset()
    settings = {"recompile_limit": 2, "fail_on_recompile_limit_hit": True}
    with torch._dynamo.config.patch(settings):
        compiled = torch.compile(Calls(lambda x: x * 2), backend="eager", dynamic=False)
        for rows in range(2, 9):
            compiled(torch.ones(rows, 4))


def export_bare(model: nn.Module) -> None:
    torch.export.export(model, (X,), strict=False)


def fail_in_exporter() -> None:
    try:
        flattening.specs(["x"], [3])  # type: ignore[list-item]
    except AttributeError as error:
        raise ExportError(source_lines.own(error), blame=source_lines.blame(error)) from error


class Case(NamedTuple):
    """A cause, the target, the function that triggers it, and whether the model's line is known."""

    name: str
    target: str
    spring: Callable[[Path], object]
    placed: bool = False


LEAF = torch.ones(4, requires_grad=True)
SPRUNG = [
    Case("branch-on-values", "compile", lambda _: exported(Branch()), True),
    Case("branch-on-values", "compile", lambda _: torch.compile(Branch(), backend="eager", fullgraph=True)(X), True),
    Case("branch-on-values", "compile", lambda _: exported(Chooses()), True),
    Case("check-on-values", "compile", lambda _: exported(Asserts()), True),
    Case("check-on-values", "onnx", lambda _: exported(Raises()), True),
    Case("number-from-values", "compile", lambda _: exported(Loop()), True),
    Case("size-from-values", "compile", lambda _: exported(Select()), True),
    Case("packed-sequence", "onnx", lambda _: exported(Lengths(), torch.ones(2, 3, 4), torch.tensor([3, 2])), True),
    Case("loop-on-values", "compile", lambda _: exported(Decodes()), True),
    Case("copied-in-forward", "compile", lambda _: exported(Copies()), True),
    Case("dimension-fixed", "compile", lambda _: constrained(Fixed(), torch.ones(3, 4), batch=(1, 8))),
    Case("dimension-fixed", "onnx", lambda _: constrained(Rows(), torch.ones(2, 4), batch=(1, 8))),
    Case("dimension-narrowed", "onnx", lambda _: constrained(Narrow(), torch.ones(3, 4), batch=(1, 8))),
    Case("dimensions-tied", "onnx", lambda _: constrained(Add(), X, X * 2, rows=(1, 8), lines=(1, 9))),
    Case("complex-numbers", "onnx", lambda folder: to_onnx(ComplexProduct(), folder), True),
    Case("complex-numbers", "onnx", run_complex_input),
    Case("operator-not-in-torchscript", "script", lambda _: bridge.from_exported(exported(CallsCustom())), True),
    Case("custom-operator-onnx", "onnx", lambda folder: to_onnx(CallsCustom(), folder), True),
    Case("custom-operator-onnx", "onnx", lambda _: load_onnx(small_onnx("Strange", "mine"))),
    Case("operator-not-in-onnx", "onnx", lambda folder: to_onnx(Eigenvalues(), folder), True),
    Case("mixed-dtypes-onnx", "onnx", lambda _: translated(Calls(lambda x: x.clamp(50, 8000.0)))),  # PyanNet
    Case("mixed-dtypes-onnx", "onnx", lambda _: translated(Calls(lambda x: 1.0 - (x > 0).long()))),  # XLNet
    Case(
        "bincount-with-weights-onnx",
        "onnx",
        lambda _: translated(Calls(lambda x: torch.bincount(x[0].long(), x[0], minlength=4)[:4])),
    ),
    Case("python-number-onnx", "onnx", lambda _: translated(Rolls())),
    Case("size-as-attribute-onnx", "onnx", lambda _: translated(Calls(filter_rows), {0: torch.export.Dim.DYNAMIC})),
    Case("opset-too-new", "onnx", lambda _: load_onnx(small_onnx("Relu", opset=99))),
    Case("no-onnxruntime-kernel", "onnx", float64_convolution),
    Case("custom-operator-not-registered", "trace", load_without_the_operator),
    Case("custom-operator-not-registered", "trace", lambda _: torch.ops.nowhere.near(X)),
    Case("custom-operator-not-registered", "trace", lambda _: torch.library.register_fake("nowhere::near", abs)),
    Case("sparse-or-quantized", "onnx", lambda folder: to_onnx(ToSparse(), folder), True),
    Case("sparse-or-quantized", "trace", lambda _: X.to_sparse().view(-1)),
    Case("sparse-or-quantized", "compile", lambda _: exported(Calls(lambda x: torch.nested.nested_tensor([x, x])))),
    Case("custom-operator-without-fake-kernel", "compile", lambda _: exported(Calls(torch.ops.sprung.without_fake))),
    Case("operator-without-kernel", "trace", lambda _: torch.ops.sprung.without_kernel(X)),
    Case("cache-in-outputs", "trace", lambda _: traced(Calls(cache), strict=False)),
    Case("object-in-inputs-or-outputs", "compile", lambda _: export_bare(Calls(lambda x: (x, Unknown())))),
    Case("output-not-a-tensor", "trace", lambda _: traced(Calls(lambda x: (x, "text")))),
    Case("output-not-a-tensor", "trace", lambda _: traced(Calls(lambda x: {"answer": 42}), strict=False)),
    Case("output-not-a-tensor", "trace", lambda _: flattening.output_leaves({"answer": "text"})),
    Case("mutated-input", "trace", lambda _: traced(InPlace()), True),
    Case("mutated-input", "trace", lambda _: traced(Weight()), True),
    Case("size-as-a-key", "compile", lambda _: constrained(Keys(), X, batch=(1, 8)), True),
    Case("written-through-data", "compile", lambda _: exported(WritesData())),
    Case("fixed-device", "compile", lambda _: exported(Device()), True),
    Case("fixed-device", "trace", lambda _: traced(Calls(lambda x: x + torch.ones(2, 4)))(X.to("meta"))),
    Case("lengths-on-a-gpu", "trace", lambda _: nn.utils.rnn.pack_padded_sequence(X[None], LENGTHS, True)),
    Case("depends-on-strides", "trace", lambda _: traced(View()), True),
    Case("depends-on-strides", "compile", lambda _: exported(View()), True),
    Case("leaves-torch", "compile", lambda _: exported(ToNumpy()), True),
    Case("unknown-kernel", "compile", lambda _: exported(Pointer()), True),
    Case("graph-break", "compile", lambda _: torch.compile(Opens(), backend="eager", fullgraph=True)(X), True),
    Case("recompile-limit", "compile", lambda _: recompile_again_and_again()),
    Case("source-is-missing", "script", lambda _: torch.jit.script(without_source())),
    Case("annotation", "script", lambda _: torch.jit.script(Annotated()), True),
    Case("annotation", "script", lambda _: torch.jit.script(AnnotatedSet()), True),
    Case("variable-arguments", "script", lambda _: torch.jit.script(NeedsStars()), True),
    Case("variable-arguments", "script", lambda _: torch.jit.script(SpreadsStars()), True),
    Case("autograd-function", "trace", lambda folder: torch.jit.save(traced(CallsTwice()), str(folder / "f.pt")), True),
    Case("vmap", "compile", lambda _: exported(Vmapped()), True),
    Case("vmap-of-jacobians", "compile", lambda _: exported(Jacobians()), True),
    Case("view-as-dtype", "trace", lambda _: traced(Calls(lambda x: x.view(torch.int32) + 1))),
    Case(
        "functional-call",
        "trace",
        lambda _: traced(Calls(lambda x: torch.func.functional_call(nn.Linear(4, 4), {}, x))),
    ),
    Case("projections-onnx", "onnx", lambda folder: to_onnx(nn.LSTM(4, 6, proj_size=3), folder)),
    Case("syntax", "script", lambda _: torch.jit.script(Tries()), True),
    Case("attribute", "script", lambda _: torch.jit.script(HoldsAnObject()), True),
    Case("types", "script", lambda _: torch.jit.script(TwoTypes()), True),
    Case("rounded-to-digits", "script", lambda _: bridge.from_exported(exported(Rounds())), True),
    Case("rounded-to-digits", "export", lambda folder: torch.export.save(exported(Rounds()), folder / "m.pt2")),
    Case("rounded-to-digits", "onnx", round_in_onnx),
    Case("cannot-be-saved", "export", save_what_cannot_be_saved, True),
    Case("script-module", "compile", lambda _: export_bare(torch.jit.script(nn.Linear(4, 4)))),
    Case("requires-grad", "trace", lambda _: traced(Calls(lambda x: x + LEAF))),
    Case("cannot-be-copied", "trace", lambda _: copy.deepcopy(locked())),
    Case("cannot-be-copied", "trace", lambda _: pickle.dumps(Calls(lambda x: x))),
    Case("cannot-be-copied", "trace", lambda _: copy.deepcopy(LEAF * 2)),
    Case("exporter-itself", "trace", lambda _: fail_in_exporter()),
    Case("no-compiler", "compile", lambda _: find_no_compiler()),
    Case("out-of-memory", "trace", lambda _: torch.empty(1 << 50)),
    Case("shared-library", "trace", lambda _: torch.ops.load_library("/nowhere/libnone.so")),
]

# Each with a comment on where it was recorded.
RECORDED = [
    # torch 2.14 on Python 3.14: the warning that precedes any error.
    (
        "python-3.14",
        "FutureWarning: `torch.jit.script` is not supported in Python 3.14+ and may break.",
    ),
    # torchvision from PyPI with a +cpu build of torch.
    ("torchvision-mismatch", "RuntimeError: operator torchvision::nms does not exist"),
    # AOTInductor with an old compiler; slow to reproduce.
    ("compiler-failed", "InductorError: CppCompileError: C++ compile error Command: g++ -std=c++20 model.cpp"),
    # A cache that another user has filled, and one on a file system that is read-only.
    ("cache-not-writable", "InductorError: PermissionError: [Errno 13] Permission denied: '/cache/yx/cyx.main.cpp'"),
    ("cache-not-writable", "InductorError: OSError: [Errno 30] Read-only file system: '/cache/yx'"),
    # g++ and clang, ended by the kernel or by a limit, and a linker.
    *(
        ("compiler-killed", f"InductorError: CppCompileError: C++ compile error: {said}")
        for said in (
            "Killed signal terminated program cc1plus",
            "ld terminated with signal 9 [Killed]",
            "cc1plus: out of memory allocating 65536 bytes after a total of 9 bytes",
            "virtual memory exhausted: Cannot allocate memory",
            "LLVM ERROR: out of memory",
        )
    ),
    # A full disk, while inductor compiles and while torch.jit.save writes.
    ("disk-full", "InductorError: CppCompileError: C++ compile error: cannot write PCH file: No space left on device"),
    ("disk-full", "RuntimeError: basic_ios::clear: iostream error"),
    # torch.compile on Debian without openssl.
    ("no-openssl", "FileNotFoundError: [Errno 2] No such file or directory: 'openssl' (cache/zq/czq.py:34)"),
    # A message of the kernel; a GPU; dlopen without the CUDA libraries.
    ("illegal-instruction", "Illegal instruction (core dumped)"),
    ("out-of-memory", "ImportError: /usr/lib/x.so: failed to map segment from shared object"),
    ("out-of-memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."),
    ("shared-library", "OSError: libcudart.so.13: cannot open shared object file: No such file or directory"),
    # Recurrent layers and onnxruntime with a tensor that stays float32.
    (
        "different-dtypes",
        "ValueError: RNN input dtype (torch.float32) does not match weight dtype (torch.float16). Convert input",
    ),
    (
        "different-dtypes",
        "Type Error: Type parameter (T) of Optype (MatMul) bound to different types (tensor(float) and tensor(float16)",
    ),
    ("different-dtypes", "RuntimeError: Input type (float) and bias type (c10::Half) should be the same"),
    ("different-dtypes", "RuntimeError: Input type (unsigned char) and bias type (float) should be the same"),
    ("number-too-large", "RuntimeError: value cannot be converted to type c10::Half without overflow"),
    ("too-many-processes", "RuntimeError: can't start new thread"),
    ("too-many-processes", "libgomp: Thread creation failed: Resource temporarily unavailable"),
    ("too-many-processes", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    ("lengths-on-a-gpu", "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"),
    # torch before 2.14, with an input on the CPU.
    ("fixed-device", "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same"),
    ("fixed-device", "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"),
    (
        "different-dtypes",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
    ),
    # exporter's own refusal, tested with the code that raises it.
    ("computes-gradients", "RuntimeError: forward computes gradients"),
    ("sparse-or-quantized", "AttributeError: to_dense of a sparse tensor cannot be captured"),
    # Layers of dynamic length on a GPU with torch 2.11.
    (
        "recurrent-on-gpu",
        "InductorError: LoweringException: AttributeError: 'int' object has no attribute 'meta' target: while_loop",
    ),
    # torch's older exporter.
    (
        "operator-not-in-opset",
        "UnsupportedOperatorError: Exporting the operator 'aten::triu' to ONNX opset version 13 is not supported. "
        "Support for this operator was added in version 14, try exporting with this version",
    ),
    (
        "operator-not-in-onnx",
        "UnsupportedOperatorError: Exporting the operator 'aten::gcd' to ONNX opset version 20 is not supported",
    ),
    (
        "operator-not-in-onnx",
        "OnnxExporterError: Unsupported: ONNX export of operator Sort, Out parameter is not supported.",
    ),
    # A model that torchao has quantized; a convolution after a length regulator, slow to reproduce.
    ("quantized-already", "RuntimeError: Attempted to access the data pointer on an invalid python storage."),
    ("size-without-producer", "AssertionError: materialize_symints: no producer for u0"),
    # onnxruntime 1.31 with attention in float16 on a CPU.
    ("onnxruntime-crashed", "onnx@fp16 (python) was ended by SIGSEGV"),
    # exporter-run.
    ("custom-operator-not-registered", "trace.pt calls operators of torchvision, which are not registered; load"),
    # torch 2.11 on CUDA, with an LSTM, and torch 2.14 with a while_loop whose functions read what it starts from.
    ("loop-starts-from-its-operand", "RuntimeError: cond_fn might be aliasing the input or the output!"),
    # AOTInductor with PESTO's torch.view_as_complex; slow to reproduce.
    ("complex-view", "RuntimeError: Tensor must have a last dimension with stride 1 (pesto/data.py:65)"),
    # torch.jit.trace of torch.cond; it leaves torch 2.11 in a broken state.
    (
        "higher-order-operator",
        "RuntimeError: Detected that you are using FX to torch.jit.trace a dynamo-optimized function.",
    ),
    # torch.jit.trace of torch's flex_attention.
    ("higher-order-operator", "RuntimeError: Unsupported value kind: Tensor"),
    # torch.jit.script of torch 2.14; earlier versions accept it.
    (
        "autograd-function",
        "RuntimeError: Python builtin <built-in method apply of FunctionMeta object> is currently not",
    ),
    # torch's older exporter, of a convolution whose weights are computed; the newer one's error stands before it.
    (
        "size-as-attribute-onnx",
        "torch.onnx.export: TypeError: Unsupported attribute type: '<class 'torch.onnx._internal.exporter._tensors."
        "SymbolicTensor'>'; torch's older exporter: SymbolicValueError: Unsupported: ONNX export of convolution for "
        "kernel of unknown shape.",
    ),
    # torch.export before 2.14.
    (
        "dimension-fixed",
        "UserError: Constraints violated (b)! - Not all values of b = L['x'].size()[0] in the specified range are "
        "valid because b was inferred to be a constant (3).",
    ),
    ("number-from-values", "Could not extract specialized integer from data-dependent expression u0 (unhinted: u0)."),
    ("branch-on-values", "UserError: Dynamic control flow is not supported at the moment. Please use torch.cond"),
]


def spring(act: Callable[[Path], object], folder: Path) -> Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as raised:  # each raises another type
            act(folder)
    return raised.value


@pytest.mark.parametrize("case", SPRUNG, ids=[f"{case.name}-{case.target}" for case in SPRUNG])
def test_the_cause_of_a_real_error(case: Case, tmp_path: Path) -> None:
    error = spring(case.spring, tmp_path)
    text = source_lines.summary(error)
    cause = causes.of(error, case.target, text)
    assert cause is not None, text
    assert cause.name == case.name, text
    assert_readable(cause)
    if case.placed:
        path, _, line = source_lines.place_of(error).rpartition(":")
        assert path == __file__
        assert MARK in linecache.getline(path, int(line)), f"line {line}"


def assert_readable(cause: causes.Cause) -> None:
    """Check that every placeholder was filled."""
    for text in (cause.sentence, cause.remedy):
        assert text
        assert text == " ".join(text.split())
        assert not any(left in text for left in ("{", "}", " ()"))
        assert text[-1] not in ":( "


@pytest.mark.parametrize(("name", "text"), RECORDED, ids=[name for name, _ in RECORDED])
def test_the_cause_of_a_recorded_text(name: str, text: str) -> None:
    (known,) = (cause for cause in causes.CAUSES if cause.name == name)
    cause = causes.find(text, (*known.only, "compile")[0])
    assert cause is not None
    assert cause.name == name
    assert_readable(cause)


# Causes that exporter detects itself, with the words for their placeholders.
FOUND: dict[str, dict[str, str]] = {
    "dimension-baked": {"dim": "batch", "size": "2"},
    "size-baked": {"what": "32*ceil(s/32)", "size": "224"},
    "length-of-istft": {"what": "2*s", "size": "224"},
    "number-in-a-trace": {},
    "size-compared": {"what": "(h//4)*(w//4)", "size": "16"},
    "size-dependent": {},
    "wrong-at-the-example": {},
    "unsteady": {"why": "the model draws random numbers"},
    "too-coarse": {},
    "rounding-decides": {},
    "saturated": {},
    "not-a-number": {},
    "killed": {},
    "compiler-unusable": {},
    "operator-not-in-torchscript": {"op": "aten.flex"},
}


@pytest.mark.parametrize("name", FOUND)
def test_causes_that_exporter_detects_itself(name: str) -> None:
    error = ExportError("it fails", blame=Blame(name, FOUND[name]))
    cause = causes.of(pickle.loads(pickle.dumps(error)), "compile")
    assert cause is not None
    assert (cause.name, cause.patterns) == (name, ())
    assert_readable(cause)
    assert all(word in cause.sentence for word in FOUND[name].values())


def test_a_later_opset_is_advised_only_where_it_helps() -> None:
    old = causes.find("Exporting the operator 'aten::triu' to ONNX opset version 13 is not supported. Support for this "
                      "operator was added in version 14, try exporting with this version", "onnx")  # fmt: skip
    never = causes.find("No ONNX function found for <OpOverload(op='aten.gcd', overload='default')>.", "onnx")
    assert old is not None
    assert never is not None
    assert "--opset 14" in old.remedy
    assert "opset" not in never.remedy + never.sentence


def test_the_name_of_an_unsupported_construct_has_no_space_before_it() -> None:
    cause = causes.find("UnsupportedNodeError: import statements aren't supported", "script")
    assert cause is not None
    assert "(UnsupportedNodeError" not in cause.sentence
    assert "(import statements)" in cause.sentence


def test_every_cause_has_a_test() -> None:
    names = [cause.name for cause in causes.CAUSES]
    assert len(set(names)) == len(names)
    assert set(names) == {case.name for case in SPRUNG} | {name for name, _ in RECORDED} | FOUND.keys()


def test_an_uncertain_cause_says_perhaps(tmp_path: Path) -> None:
    """torch reports that a dimension was fixed, but not by what."""
    text = source_lines.summary(spring(lambda _: constrained(Rows(), torch.ones(2, 4), batch=(1, 8)), tmp_path))
    for cause in (causes.find(text, "onnx"), causes.named("dimension-baked", "trace", FOUND["dimension-baked"])):
        assert cause is not None
        assert " at 2, perhaps because" in cause.sentence


@pytest.mark.parametrize("target", ["compile", "onnx", "export"])
def test_causes_of_torchscript_do_not_apply_to_other_targets(target: str) -> None:
    """torch's own operators raise the same message for invalid arguments."""
    text = "aten::sub() Expected a value of type 'Tensor' for argument 'self' but instead found type 'float'"
    assert causes.find(text, target) is None
    cause = causes.find(text, "script")
    assert cause is not None
    assert cause.name == "types"


def test_torch_exports_jacobians_are_not_blamed_for_what_a_trace_lacks() -> None:
    text = "AttributeError: 'Tensor' object has no attribute 'constant'"
    assert causes.find(text, "trace", (3, 12)) is None
    for target in ("", "script", "compile", "onnx", "export"):
        cause = causes.find(text, target)
        assert cause is not None
        assert cause.name == "vmap-of-jacobians"


@pytest.mark.parametrize("target", ["trace", "compile", "eager"])
def test_a_crash_of_another_target_is_not_onnxruntimes(target: str) -> None:
    assert causes.find(f"{target} (python) was ended by SIGSEGV", target) is None


def test_an_unknown_message_has_no_cause() -> None:
    assert causes.find("ValueError: not to be traced", "compile") is None
    assert causes.find("", "compile") is None


def test_the_line_that_writes_through_data(tmp_path: Path) -> None:
    text = source_lines.summary(spring(lambda _: exported(WritesData()), tmp_path))
    path, _, line = source_lines.place(text).rpartition(":")
    assert path == __file__
    assert MARK in linecache.getline(path, int(line))


def test_the_first_match_in_a_message_is_the_cause() -> None:
    branch, annotation = "Could not guard on data-dependent expression", "Unknown type name 'set[str]'"
    first = causes.find(f"torch.export: {branch} (a.py:1); torch.jit.script: {annotation} (b.py:2)", "script")
    other = causes.find(f"torch.jit.script: {annotation} (b.py:2); torch.export: {branch} (a.py:1)", "script")
    assert first is not None
    assert other is not None
    assert (first.name, other.name) == ("branch-on-values", "annotation")


def test_a_remedy_is_for_the_target() -> None:
    text = "Could not guard on data-dependent expression"
    script, onnx = causes.find(text, "script"), causes.find(text, "onnx")
    assert script is not None
    assert onnx is not None
    assert "ship script" in onnx.remedy
    assert "ship script" not in script.remedy


@pytest.mark.parametrize(
    ("target", "python", "name"),
    [
        ("script", (3, 14), "python-3.14"),
        ("trace", (3, 15), "python-3.14"),
        ("compile", (3, 14), None),
        ("script", (3, 13), None),
    ],
)
def test_torchscript_on_a_later_python(target: str, python: tuple[int, int], name: str | None) -> None:
    cause = causes.find("SystemError: something that nobody has seen", target, python)
    assert (cause.name if cause else None) == name


def test_the_reason_of_a_row() -> None:
    raw = "torch.export: Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1))"
    reason, remedy, name = causes.describe(ExportError(f"{raw} (net.py:12)"), "onnx")
    assert name == "branch-on-values"
    assert reason == f"A branch depends on the values of tensors (net.py:12): {raw}"
    assert "torch.cond" in remedy
    assert causes.describe(ExportError(raw, "do this"), "onnx").remedy == "do this"
    assert remedy.endswith("; `exporter repair MODEL` may find a patch")
    assert "exporter repair" not in causes.describe(ExportError(raw.removeprefix("torch.export: ")), "script").remedy
    unknown = "torch.export: TypeError: unsupported format string passed to SymFloat.__format__"
    assert causes.describe(ExportError(unknown), "export").remedy == "`exporter repair MODEL` may find a patch"
    twice = causes.describe(ExportError(f"{raw} (net.py:12); torch.jit.script: neither (net.py:3)"), "script").reason
    assert (
        twice == f"A branch depends on the values of tensors (net.py:12): {raw}; torch.jit.script: neither (net.py:3)"
    )
    assert causes.describe(ExportError("something else (net.py:1)"), "onnx") == ("something else (net.py:1)", "", "")


def test_both_onnx_exporters_have_a_cause() -> None:
    """Based on PESTO: one exporter fails at round(), the other at complex numbers."""
    newer = "torch.onnx.export: DispatchError: No ONNX function found for <built-in function round>. (pesto.py:259)"
    operator = "Exporting the operator 'aten::view_as_complex' to ONNX opset version 20 is not supported"
    both = BothFailed.of(ExportError(newer), ExportError(f"UnsupportedOperatorError: {operator}"))
    reason, remedy, _ = causes.describe(both, "onnx")
    assert reason.startswith(
        "There is no translation to ONNX for Python's round() of a number computed in the call (pesto.py:259); "
        "in torch's older exporter, complex numbers are used where this target supports only real ones: torch.onnx"
    )
    assert remedy.startswith("compute it when the module is built")
    twice = causes.describe(BothFailed.of(ExportError(newer), ExportError(newer)), "onnx")
    assert "in torch's older exporter, " not in twice.reason


def test_the_raw_message_in_a_reason_is_short() -> None:
    reason, *_ = causes.describe(ExportError(f"CUDA out of memory. {'Tried to allocate. ' * 100}"), "onnx")
    assert len(reason) < 2 * causes.REASON
    assert reason.endswith(" …")
    assert "\n" not in causes.shorten("one\ntwo")
