"""Which calls are captured and replayed, tested with onnxruntime's real binding on the CPU, which captures nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from exporter.core.errors import ArtifactError
from exporter.targets import Options, _ort_cuda_graphs
from exporter.targets import onnx as target
from exporter.targets._ort_cuda_graphs import Bound, Graphs

REFUSAL = "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 900: not permitted ; GPU=0 ; hostname=secret ; line=1"


@pytest.fixture(autouse=True)
def no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ort_cuda_graphs, "_wait", lambda device: None)


class Session:
    """An onnxruntime session of `double = x + x, positive = x > 0` that records the graph that each run asks for."""

    def __init__(self, refuses: bool = False) -> None:
        nodes = [
            helper.make_node("Add", ["x", "x"], ["double"]),
            helper.make_node("Greater", ["x", "zero"], ["positive"]),
        ]
        made = helper.make_graph(
            nodes,
            "doubles",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
            [
                helper.make_tensor_value_info("double", TensorProto.FLOAT, ["n", 2]),
                helper.make_tensor_value_info("positive", TensorProto.BOOL, ["n", 2]),
            ],
            [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])],
        )
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        onnx.checker.check_model(model)
        self.real = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.refuses = refuses
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.asked.append(options.get_run_config_entry("gpu_graph_id") if options else "")
        if self.refuses and self.asked[-1] != "-1":
            raise RuntimeError(REFUSAL)
        self.real.run_with_iobinding(binding, options)


def graphs(session: Session) -> Graphs:
    return Graphs(Bound(session, "cpu"))


def check(runner: Graphs, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    got = runner.run((x,))
    torch.testing.assert_close(got, (2 * x, x > 0), rtol=0, atol=0)
    return got


def test_each_shape_is_captured_once_and_replayed() -> None:
    session = Session()
    runner = graphs(session)
    for size in (1, 3, 1, 3, 1):
        check(runner, torch.randn(size, 2))
    assert session.asked == ["-1", "0", "-1", "1", "0", "1", "0"]


def test_outputs_belong_to_the_caller() -> None:
    runner = graphs(Session())
    x = torch.ones(2, 2)
    kept = [check(runner, x * k) for k in (1, 2, -3)]
    for k, outputs in zip((1, 2, -3), kept, strict=True):
        torch.testing.assert_close(outputs, (2 * k * x, k * x > 0))


def test_inputs_may_be_non_contiguous_and_temporary() -> None:
    runner = graphs(Session())
    for _ in range(2):
        check(runner, torch.randn(2, 3).T)
        check(runner, torch.randn(3, 2))


def test_shapes_above_the_limit_run_without_a_graph() -> None:
    session = Session()
    runner = graphs(session)
    for size in range(1, _ort_cuda_graphs.SHAPES + 3):
        check(runner, torch.randn(size, 2))
    session.asked.clear()
    check(runner, torch.randn(_ort_cuda_graphs.SHAPES + 1, 2))
    check(runner, torch.randn(_ort_cuda_graphs.SHAPES, 2))
    assert session.asked == ["-1", str(_ort_cuda_graphs.SHAPES - 1)]


def test_a_failed_capture_raises() -> None:
    session = Session(refuses=True)
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs(session).run((torch.randn(1, 2),))
    assert session.asked == ["-1", "0"]


def test_a_failed_call_raises_and_the_next_one_works() -> None:
    session = Session()
    runner = graphs(session)
    with pytest.raises(Exception, match="Got invalid dimensions"):
        runner.run((torch.randn(2, 3),))
    check(runner, torch.randn(2, 2))


def test_each_thread_has_its_own_graphs() -> None:
    session = Session()
    runner = graphs(session)
    wrong: list[BaseException] = []

    def call() -> None:
        try:
            for size in (1, 2) * 20:
                check(runner, torch.randn(size, 2))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {"0", "1"} <= set(session.asked) <= {"-1", *map(str, range(6))}


@pytest.mark.parametrize("where", ["Cuda", "Cpu", "CudaPinned"])
def test_a_value_used_on_the_cpu_prevents_graphs(where: str) -> None:
    def infos(*names: str) -> Any:
        return lambda: [SimpleNamespace(name=name) for name in names]

    session = SimpleNamespace(
        get_inputs=infos("x", "size"),
        get_outputs=infos("y"),
        get_input_memory_infos=infos("Cuda", where),
        get_output_memory_infos=infos("Cuda"),
    )
    assert _ort_cuda_graphs.obstacle(session) == ("" if where == "Cuda" else "size is used on the CPU")


def test_a_missing_kernel_has_a_specific_remedy(tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BFLOAT16, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "twice", [x], [y])
    opset = [onnx.helper.make_opsetid("", 20)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="Could not find an implementation for Add") as raised:
        target._session(tmp_path / "model.onnx", Options())
    assert raised.value.remedy == "use float32 there, or ship another target"


@pytest.mark.parametrize("refused", [True, False])
def test_a_session_that_refuses_graphs_is_created_again_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    made: list[bool] = []

    def session(path: Path, options: Options, graphs: bool = False) -> Any:
        made.append(graphs)
        if graphs and refused:
            raise ArtifactError(f"onnxruntime cannot load {path}: [ONNXRuntimeError] : 1 : FAIL : control flow")
        cuda = [SimpleNamespace(name="Cuda")]
        values = {"get_inputs": [], "get_outputs": [], "get_input_memory_infos": [], "get_output_memory_infos": []}
        values |= {"get_inputs": [SimpleNamespace(name="x")], "get_input_memory_infos": cuda}
        values |= {"get_providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})

    monkeypatch.setattr(target, "_session", session)
    loaded = target.load(tmp_path / "model.onnx", Options(device="cuda", cuda_graphs=True))
    assert made == ([True, False] if refused else [True])
    assert loaded.provider() == ("CUDA" if refused else "CUDA graph")
    assert loaded.notes() == (("no CUDA graph: control flow",) if refused else ())
    made.clear()
    assert target.load(tmp_path / "model.onnx", Options(device="cuda")).provider() == "CUDA", "graphs only on request"
    assert made == [False]
