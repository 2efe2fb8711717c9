"""Places: find the model's own line, whatever the callers and callees."""

from __future__ import annotations

import ast
import linecache
import re
from pathlib import Path

import pytest
import sympy
import torch

from exporter import targets
from exporter.core import causes, source_lines
from exporter.core.errors import ExportError
from exporter.evidence import eager
from exporter.model import flattening, structure

targets.get("onnx")  # adds its libraries
SITE = "/usr/lib/python3.12/site-packages"
TRACEBACK = f"""Traceback (most recent call last):
  File "/home/me/serve.py", line 3, in <module>
    main()
  File "{SITE}/transformers/models/bert/modeling_bert.py", line 512, in forward
    return self.encoder(x)
  File "{SITE}/torch/nn/modules/module.py", line 1773, in _call_impl
    return forward_call(*args, **kwargs)
  File "/usr/lib/python3.12/inspect.py", line 1285, in getsource
    raise OSError('could not get source code')
  File "<eval_with_key>.3", line 6, in forward
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (TRACEBACK, "transformers/models/bert/modeling_bert.py:512"),
        (
            '  File "/home/me/net.py", line 7\n    x = y\n        ~ <--- HERE\n  File "/home/me/caller.py", line 9',
            "/home/me/net.py:7",
        ),
        ("Tensor failed:\n/home/me/net.py(12): forward\n/home/me/main.py(3): <module>", "/home/me/net.py:12"),
        (
            "Tensor failed:\n/home/me/my nets/a net.py(12): forward\n/home/me/main.py(3): <module>",
            "/home/me/my nets/a net.py:12",
        ),
        ("torch.export: no (/home/me/my nets/a net.py:4)", "/home/me/my nets/a net.py:4"),
        ("torch.export: no (see net.py:4)", "net.py:4"),
        ("torch.export: no (net.py:4); torch.jit.script: neither (other.py:5)", "net.py:4"),
        ("/home/me/net.py:20: TracerWarning: Converting a tensor to a Python boolean", "/home/me/net.py:20"),
        ("Caused by: (ome/me/net.py:20 in forward)", ""),
        ("Meta: registered at /home/me/ops.py:3 [kernel]", ""),
        ('File "code/__torch__/net.py", line 8, in forward', ""),
        ("torch/_functorch/vmap.py:72: no", ""),
        (f'File "{SITE}/onnxscript/optimizer.py", line 2, in f', ""),
        ("/src/onnxruntime/core/graph.h:46 no", ""),
        ("", ""),
    ],
)
def test_the_place_in_a_text(text: str, where: str) -> None:
    assert source_lines.place(text) == where


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("this line")


def raised(*sizes: int) -> Exception:
    """Return an error of a model that torch calls, below exporter and this file, wrapped as exporter does."""
    example = (torch.ones(*sizes),)
    flat = flattening.FlatModule(Raises(), flattening.flatten_inputs(Raises(), example))
    wrapped = ExportError("wrapped")
    try:
        flat(*example)
    except ValueError as error:
        wrapped.__cause__ = error
    return wrapped


def test_the_models_line_and_not_its_callers() -> None:
    path, _, line = source_lines.place_of(raised(2)).rpartition(":")
    assert path == __file__
    assert "this line" in linecache.getline(path, int(line))


def test_an_expected_error_of_exporter_has_no_place() -> None:
    with pytest.raises(ExportError) as caught:
        flattening.output_leaves("text")
    assert source_lines.place_of(caught.value) == ""
    assert source_lines.own(caught.value) == ""  # it is raised on purpose
    assert source_lines.located("as it is", caught.value) == "as it is"


def test_internal_errors_are_distinguished_from_errors_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = flattening.FlatModule(Raises(), flattening.flatten_inputs(Raises(), torch.ones(2)))
    monkeypatch.setattr(structure, "SHORT", None)
    with pytest.raises(ExportError) as said, eager.naming("batch=2"):
        flattening.output_leaves(Holds())
    assert re.match(rf"{source_lines.OWN} \(exporter/model/structure\.py:\d+\): TypeError: ", str(said.value))
    assert "the model" not in str(said.value)
    reason, remedy, _ = causes.describe(said.value)
    assert reason.startswith("This is a bug in exporter, not a problem of the model")
    assert "report it" in remedy
    monkeypatch.undo()
    with pytest.raises(ExportError, match=r"the model fails at batch=2: ValueError"), eager.naming("batch=2"):
        flat(torch.ones(2))
    with pytest.raises(ExportError, match="the model fails at batch=2: TypeError"), eager.naming("batch=2"):
        flat.answer(y=3)


class Holds:
    def __init__(self) -> None:
        self.x = torch.ones(1)


class Compares(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> bool:
        return bool(sympy.Symbol("n") > 1)  # this line


def test_frames_of_a_library_are_skipped() -> None:
    example = (torch.ones(2),)
    with pytest.raises(TypeError, match="truth value") as caught:
        flattening.FlatModule(Compares(), flattening.flatten_inputs(Compares(), example))(*example)
    path, _, line = source_lines.place_of(caught.value).rpartition(":")
    assert path == __file__
    assert "this line" in linecache.getline(path, int(line))


def test_the_place_of_a_node_of_a_graph() -> None:
    """When torch.onnx fails, all frames are torch's own, and one of them has the node."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["stack_trace"] = '  File "/home/me/net.py", line 31, in forward'
    code = compile(
        ast.parse("def translate(node):\n    raise KeyError(node.name)"), f"{SITE}/torch/onnx/core.py", "exec"
    )
    space: dict[str, object] = {}
    exec(code, space)
    with pytest.raises(KeyError) as caught:
        space["translate"](node)  # type: ignore[operator]
    trace = caught.value.__traceback__
    assert trace is not None
    caught.value.__traceback__ = trace.tb_next
    assert source_lines.place_of(caught.value) == "/home/me/net.py:31"


def test_a_place_is_added_once() -> None:
    error = raised(2)
    once = source_lines.located("wrapped", error)
    assert once.startswith("wrapped (")
    assert source_lines.located(once, error) == once
    assert source_lines.summary(error) == f"ExportError: {once}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\nfirst\nof two lines\n\nand advice", "first of two lines"),
        ("", ""),
        ("no source of <function f at 0x7f103ab40900>", "no source of <function f>"),
        ("'L (of Python compilation unit at: 0x55acc5e45580)' has", "'L (of Python compilation unit)' has"),
        ("x" * 5000, "x" * source_lines.MESSAGE),
        (
            "no kernel Exception raised from call at /aten/Linear.cpp:195 (most recent call first): frame #0",
            "no kernel",
        ),
        ("no kernel\nException raised from call at /aten/Linear.cpp:195 (most recent call first):\n", "no kernel"),
        (
            "run_func_( container_handle_, inputs.data(), inputs.size(), proxy_executor_handle_) API call failed at "
            "/torch/runner.cpp, line 144",
            source_lines.PACKAGE_FAILED,
        ),
        ("\x1b[1;31mred\x1b[0m and \x1b[2J", "red and \ufffd[2J"),
        (
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript:\nnet.py(3): f\n"
            "RuntimeError: RuntimeError: the reason\n\nAt:\n  net.py(4): g\n",
            "the reason",
        ),
        (
            "CppCompileError: C++ compile error\n\nCommand:\ng++ model.cpp\n\nOutput:\n/tmp/model.cpp: In function:\n"
            "/tmp/model.cpp:7:3: error: no type named 'half'\n  7 | half x;\n/tmp/model.cpp:9:3: error: another\n",
            "CppCompileError: C++ compile error: no type named 'half'",
        ),
        (
            "CppCompileError: C++ compile error\n\nCommand:\ng++ model.cpp\n\nOutput:\n\n"
            "cc1plus: out of memory allocating 65536 bytes\n",
            "CppCompileError: C++ compile error: cc1plus: out of memory allocating 65536 bytes",
        ),
    ],
)
def test_messages_in_one_line(text: str, message: str) -> None:
    assert source_lines.message(RuntimeError(text)) == message


def test_an_error_without_a_message_shows_its_type() -> None:
    assert source_lines.summary(MemoryError()) == "MemoryError"


def test_torchscript_errors_name_the_line_of_the_model(tmp_path: Path) -> None:
    """This works without the model's code, because the line is in the artifact."""

    class View(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1)  # of a transposed tensor

    torch.jit.save(torch.jit.trace(View(), (torch.ones(2, 4),)), str(tmp_path / "view.pt"))
    with pytest.raises(RuntimeError) as caught:
        torch.jit.load(str(tmp_path / "view.pt"))(torch.ones(2, 4).t())
    assert source_lines.message(caught.value).startswith("view size is not compatible")
    path, _, line = source_lines.place(str(caught.value)).rpartition(":")
    assert "of a transposed tensor" in linecache.getline(path, int(line))


def test_stack_traces_without_folders() -> None:
    """Artifacts carry these traces, so they must not depend on where they were made."""
    here = Path(source_lines.__file__)
    trace = f'  File "/home/me/models/net.py", line 4, in forward\n    return x\n  File "{here}", line 1, in f\n'
    trace += '  File "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    assert source_lines.portable(trace) == (
        '  File "net.py", line 4, in forward\n    return x\n  File "exporter/core/source_lines.py", line 1, in f\n'
        '  File "torch/nn/modules/linear.py", line 134, in forward\n'
    )


def test_a_message_that_introduces_code_does_not_end_with_its_colon() -> None:
    error = RuntimeError("import statements aren't supported:\n\n  File 'a.py', line 3\n    import math")
    assert source_lines.message(error) == "import statements aren't supported"


NODE = """File "{own}", line 12, in forward
    return self.layers(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/container.py", line 259, in forward
    input = module(input)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)"""


@pytest.mark.parametrize(
    ("own", "place"),
    [
        ("/home/me/net.py", "/home/me/net.py:12"),
        ("exporter/model/flattening.py", "torch/nn/modules/linear.py:134"),  # as a portable trace names it
    ],
)
def test_the_place_of_a_node_is_in_a_layer_if_the_model_has_no_line(own: str, place: str) -> None:
    trace = NODE.format(own=own)
    assert source_lines.place_of_node(trace) == place
    assert source_lines.place(trace) == (place if place.startswith("/home") else "")
    assert source_lines.place_of_node("") == ""
