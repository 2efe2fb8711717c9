"""onnxruntime on a GPU: inputs and outputs stay on the device, and each new shape is captured into a CUDA graph."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from exporter.core import source_lines

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

SHAPES = 8  # limit of captured shapes; the others run without a graph
NONE = -1  # onnxruntime's id for "no graph"
_capturing = threading.Lock()  # no other capture may allocate memory meanwhile


def tensor(value: Any) -> torch.Tensor:
    """Return a tensor that shares memory with an OrtValue, on its device."""
    import torch

    made: torch.Tensor = torch.utils.dlpack.from_dlpack(value._ortvalue)
    return made.view(torch.bool) if value.data_type() == "tensor(bool)" else made  # onnxruntime exports bool as uint8


class Bound:
    """A session whose inputs and outputs stay on the device."""

    def __init__(self, session: Any, device: str) -> None:
        self.session, self.device = session, device
        kind, _, number = device.partition(":")
        self._where = kind, int(number or 0)
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, inputs: Tensors, graph: int | None = None) -> Tensors:
        """Run the session; the outputs are in onnxruntime's memory."""
        held = tuple(t.contiguous() for t in inputs)
        binding = self.bind(held)
        _wait(self.device)
        self.session.run_with_iobinding(binding, None if graph is None else _in_graph(graph))
        return tuple(map(tensor, binding.get_outputs()))

    def bind(self, inputs: Tensors, outputs: Tensors | None = None) -> Any:
        """Bind these tensors without copying; onnxruntime allocates the outputs if none are given."""
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
    """Run a session's calls one at a time, replaying the graph of a known shape. The caller owns the outputs.

    A failed capture may leave the process's CUDA context unusable, so onnxruntime's error is passed on.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._graphs: dict[Any, Graph] = {}

    def run(self, inputs: Tensors) -> Tensors:
        """Run the session. A thread's first call at new shapes captures a graph; it takes as long as three calls."""
        with self._lock:
            key = threading.get_ident(), *(t.shape for t in inputs)  # onnxruntime keeps graphs per thread
            return self._replay(self._graphs[key], inputs) if key in self._graphs else self._first(key, inputs)

    def _first(self, key: Any, inputs: Tensors) -> Tensors:
        # Copy: a replay overwrites memory that was free in onnxruntime at capture time.
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
        _wait(self._bound.device)  # before another caller's replay overwrites them
        return outputs


def reason(error: Exception) -> str:
    """Return onnxruntime's message without the error codes before it and the host name after it."""
    return source_lines.message(error).rpartition(" : ")[2].partition(" ; ")[0]


def obstacle(session: Any) -> str:
    """Return why the session cannot be replayed, or "".

    A replay neither reads nor writes an input or output that is used on the CPU.
    """
    if not hasattr(session, "get_input_memory_infos"):
        return "onnxruntime 1.22 does not report on which device inputs are used"
    for given, where in (
        *zip(session.get_inputs(), session.get_input_memory_infos(), strict=True),
        *zip(session.get_outputs(), session.get_output_memory_infos(), strict=True),
    ):
        if where.name.lower() != "cuda":
            return f"{given.name} is used on the CPU"
    return ""


def _layout(given: torch.Tensor) -> tuple[Any, tuple[int, ...], int]:
    """Return the element type, shape and address, as a binding takes them."""
    import onnx
    import torch

    half = given.dtype == torch.bfloat16  # NumPy has no bfloat16
    element = onnx.TensorProto.BFLOAT16 if half else str(torch.empty(0, dtype=given.dtype).numpy().dtype)
    return element, tuple(given.shape), given.data_ptr()


def _in_graph(number: int) -> Any:
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


def _wait(device: str) -> None:
    """Wait until torch's work is done: onnxruntime uses a separate stream."""
    import torch

    torch.cuda.current_stream(device).synchronize()
