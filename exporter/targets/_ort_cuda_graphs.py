"""onnxruntime on a GPU: inputs and outputs stay there, and each shape that it meets is captured into a CUDA graph."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from exporter.core import source_lines

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

SHAPES = 8  # that are captured; the others run without a graph
NONE = -1  # the id of no graph, to onnxruntime
_capturing = threading.Lock()  # while one captures, no other may take memory


def tensor(value: Any) -> torch.Tensor:
    """The same memory as an OrtValue's, on its device."""
    import torch

    made: torch.Tensor = torch.utils.dlpack.from_dlpack(value._ortvalue)
    return made.view(torch.bool) if value.data_type() == "tensor(bool)" else made  # which onnxruntime exports as uint8


class Bound:
    """A session whose inputs and outputs stay on the device."""

    def __init__(self, session: Any, device: str) -> None:
        self.session, self.device = session, device
        kind, _, number = device.partition(":")
        self._where = kind, int(number or 0)
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, inputs: Tensors, graph: int | None = None) -> Tensors:
        """Outputs in memory of onnxruntime's."""
        held = tuple(t.contiguous() for t in inputs)
        binding = self.bind(held)
        _wait(self.device)
        self.session.run_with_iobinding(binding, None if graph is None else _in_graph(graph))
        return tuple(map(tensor, binding.get_outputs()))

    def bind(self, inputs: Tensors, outputs: Tensors | None = None) -> Any:
        """These very tensors; onnxruntime takes memory for the outputs where none are given."""
        binding = self.session.io_binding()
        for name, given in zip(self._inputs, inputs, strict=True):
            binding.bind_input(name, *self._where, *_layout(given))
        for name, to in zip(self._outputs, outputs or [None] * len(self._outputs), strict=True):
            binding.bind_output(name, *self._where, *(() if to is None else _layout(to)))
        return binding


class Graph(NamedTuple):
    """One captured run, with the tensors that it reads and writes."""

    binding: Any
    options: Any
    inputs: Tensors
    outputs: Tensors


class Graphs:
    """A session's calls, one after another, replayed where the shapes came before; outputs are the caller's own.

    What onnxruntime fails to capture may take the process's CUDA context with it: its error passes through.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._graphs: dict[Any, Graph] = {}

    def run(self, inputs: Tensors) -> Tensors:
        """The first call of a thread at its inputs' shapes captures them; it takes as long as three."""
        with self._lock:
            key = threading.get_ident(), *(t.shape for t in inputs)  # onnxruntime keeps those of threads apart
            return self._replay(self._graphs[key], inputs) if key in self._graphs else self._first(key, inputs)

    def _first(self, key: Any, inputs: Tensors) -> Tensors:
        # Copies: graphs write over what memory onnxruntime had free when they were captured.
        outputs = tuple(t.clone() for t in self._bound.run(inputs, NONE))
        _wait(self._bound.device)
        if len(self._graphs) < SHAPES:
            with _capturing:
                self._graphs[key] = self._capture(inputs, outputs)
        return outputs

    def _capture(self, inputs: Tensors, outputs: Tensors) -> Graph:
        import torch

        inputs = tuple(t.clone(memory_format=torch.contiguous_format) for t in inputs)
        outputs = tuple(map(torch.empty_like, outputs))
        graph = Graph(self._bound.bind(inputs, outputs), _in_graph(len(self._graphs)), inputs, outputs)
        _wait(self._bound.device)
        self._bound.session.run_with_iobinding(graph.binding, graph.options)
        return graph

    def _replay(self, graph: Graph, inputs: Tensors) -> Tensors:
        for static, given in zip(graph.inputs, inputs, strict=True):
            static.copy_(given)
        _wait(self._bound.device)
        self._bound.session.run_with_iobinding(graph.binding, graph.options)
        outputs = tuple(t.clone() for t in graph.outputs)
        _wait(self._bound.device)  # before another caller's replay writes over them
        return outputs


def reason(error: Exception) -> str:
    """What onnxruntime says, without its codes before and the host's name after."""
    return source_lines.message(error).rpartition(" : ")[2].partition(" ; ")[0]


def obstacle(session: Any) -> str:
    """What a replay would miss: an input or output that is used on the CPU is neither read nor written by it."""
    if not hasattr(session, "get_input_memory_infos"):
        return "onnxruntime 1.22 does not tell where inputs are used"
    for given, where in (
        *zip(session.get_inputs(), session.get_input_memory_infos(), strict=True),
        *zip(session.get_outputs(), session.get_output_memory_infos(), strict=True),
    ):
        if where.name.lower() != "cuda":
            return f"{given.name} is used on the CPU"
    return ""


def _layout(given: torch.Tensor) -> tuple[Any, tuple[int, ...], int]:
    """Element type, shape and address, as a binding takes them."""
    import onnx
    import torch

    half = given.dtype == torch.bfloat16  # which NumPy has not
    element = onnx.TensorProto.BFLOAT16 if half else str(torch.empty(0, dtype=given.dtype).numpy().dtype)
    return element, tuple(given.shape), given.data_ptr()


def _in_graph(number: int) -> Any:
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


def _wait(device: str) -> None:
    """Until torch's work is done: onnxruntime reads and writes on a stream of its own."""
    import torch

    torch.cuda.current_stream(device).synchronize()
