"""Convolutions of frozen packages on a CPU.

Weights are packed for dynamic sizes, and additions in place and biases with strides are right.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from exporter.targets import _inductor

if TYPE_CHECKING:
    import torch
    from torch import fx


@contextlib.contextmanager
def reading_before_writing() -> Iterator[None]:
    """Make inductor compute what reads a buffer before a convolution adds its result to it.

    Its in-place `y += conv(x)` is in the list of operations before the values that have yet to be computed from the old
    y, so these are computed from the new one (docs/upstream.md). Its other operations in place do this already.
    """
    from torch._inductor import mkldnn_ir
    from torch._inductor.virtualized import V

    patched: Any = mkldnn_ir.ConvolutionBinaryInplace
    make = patched.__init__

    def make_after_reads(self: Any, kernel_layout: Any, inputs: Any, constant_args: Any = ()) -> None:
        V.graph.mark_buffer_mutated(inputs[1].get_name())
        make(self, kernel_layout, inputs, constant_args)

    patched.__init__ = make_after_reads
    try:
        yield
    finally:
        patched.__init__ = make


def operators() -> dict[Any, int]:
    """Return inductor's operators for convolutions on a CPU, each with the number of tensors that are added."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return {}
    plain, in_place = torch.ops.mkldnn._convolution_pointwise, torch.ops.mkldnn._convolution_pointwise_
    return {plain.default: 0, plain.binary: 1, in_place.binary: 1}


@contextlib.contextmanager
def reading_biases() -> Iterator[None]:
    """Copy biases that are not contiguous, whose strides a frozen package ignores (docs/upstream.md)."""
    import torch._inductor.compile_fx  # first, because its modules import each other
    from torch._inductor import ir, lowering

    table: Any = lowering.lowerings

    def copying(lower: Any, place: int) -> Any:
        def lowered(*args: Any) -> Any:
            bias = args[place]
            copied = None if bias is None else ir.ExternKernel.require_contiguous(bias)
            return lower(*args[:place], copied, *args[place + 1 :])

        return lowered

    found = operators()
    if found:
        found[torch.ops.mkldnn._convolution_transpose_pointwise.default] = 0
    with contextlib.ExitStack() as changed:
        for operator, others in found.items():
            if operator in table:
                changed.enter_context(_inductor.with_entry(table, operator, copying(table[operator], 2 + others)))
        yield


@contextlib.contextmanager
def packing() -> Iterator[None]:
    """Pack the weights of convolutions with dynamic sizes when a package is compiled, for the sizes of the example.

    Inductor does that only for fixed sizes. oneDNN then converts every weight in every call: in ResNet-18 with batch 1,
    a quarter of the time. If oneDNN wants another layout for other sizes, it converts the packed weight.

    With a packed weight the result always has the channels last. Inductor expects a contiguous result of dynamic size
    if the input has only one channel or one pixel, so that rule is switched off. Without packing it is wrong for one
    pixel (docs/upstream.md).
    """
    from torch._inductor import freezing, mkldnn_ir

    settings: Any = freezing
    lowering: Any = mkldnn_ir
    passes, is_contiguous = settings.freezing_passes, lowering.is_contiguous_storage_and_layout

    def then_pack(gm: fx.GraphModule, inputs: Any) -> None:
        passes(gm, inputs)
        pack(gm)
        pack_int8(gm)

    settings.freezing_passes, lowering.is_contiguous_storage_and_layout = then_pack, lambda x: False
    try:
        yield
    finally:
        settings.freezing_passes, lowering.is_contiguous_storage_and_layout = passes, is_contiguous


class Filters:
    """The constant filters of the graphs that are compiled, as kernels read them. Equal ones are stored once."""

    def __init__(self) -> None:
        self._made: Any = weakref.WeakKeyDictionary()  # constants by graph and the hash of the filters
        self._uses: Any = weakref.WeakKeyDictionary()  # the number of uses by graph and constant

    @staticmethod
    def dense(weight: Any) -> torch.Tensor:
        """Return the filters of a convolution that inductor lowers, without oneDNN's layout."""
        import torch
        from torch._inductor.virtualized import V

        modes: Any = torch.utils._python_dispatch
        filters: Any = V.graph.constants[weight.get_name()]
        with modes._disable_current_modes():
            found: torch.Tensor = (filters.to_dense() if filters.is_mkldnn else filters).detach().contiguous()
        return found

    def of(self, weight: Any, kernel: str, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Return a constant with what `convert` makes of the filters for a kernel.

        If nothing else uses the filters themselves, leave them out of the package.
        """
        import torch
        from torch._inductor.virtualized import V

        graph: Any = V.graph
        modes: Any = torch.utils._python_dispatch
        name, made, dense = weight.get_name(), self._made.setdefault(graph, {}), self.dense(weight)
        with modes._disable_current_modes():
            key = f"{kernel} {[*dense.shape]} {hashlib.sha256(dense.numpy().tobytes()).hexdigest()}"
            if key not in made:
                made[key] = graph.add_tensor_constant(convert(dense), name=f"{name}_{kernel}")
        uses = self._uses.setdefault(graph, collections.Counter())
        uses[name] += 1
        _inductor.forget(weight, uses[name])
        return made[key]


def pack(gm: fx.GraphModule) -> int:
    """Add the packing of weights to a graph; inductor's constant folding then computes it. Return their number."""
    import torch

    mkldnn: Any = torch.ops.mkldnn
    done: dict[Any, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.target is not mkldnn._convolution_pointwise.default or node.args[1].op != "get_attr":
            continue
        x, weight, settings = node.args[0], node.args[1], node.args[3:7]  # padding, stride, dilation, groups
        key = (weight.target, str(settings))
        if key not in done:
            sizes = [_hint(size) for size in x.meta["val"].shape]
            with gm.graph.inserting_before(node):
                done[key] = gm.graph.call_function(mkldnn._reorder_convolution_weight, (weight, *settings, sizes))
        node.update_arg(1, done[key])
    gm.recompile()
    return len(done)


def pack_int8(gm: fx.GraphModule) -> int:
    """Tell the packing of int8 weights the sizes of the example, where the sizes are dynamic; return their number."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return 0
    onednn: Any = torch.ops.onednn
    found = 0
    for node in gm.graph.nodes:
        if node.target not in (onednn.qconv_prepack, onednn.qconv_prepack.default) or node.args[-1] is not None:
            continue
        inputs = {one.args[0] for one in node.users}  # of its convolutions
        known = [one.meta.get("val", one.meta.get("tensor_meta")) for one in inputs]
        if len(inputs) == 1 and known[0] is not None:
            node.update_arg(len(node.args) - 1, [_hint(size) for size in known[0].shape])
            found += 1
    gm.recompile()
    return found


def render(template: Any, kernel: Any, text: str, values: dict[str, object]) -> str:
    """Return the source of a template of inductor's: `text` with each @name@ replaced by its value.

    `threads` and `profile` are known for every template.
    """
    from torch._inductor import config

    settings: Any = config
    follows = settings.cpp.dynamic_threads or settings.cpp.threads < 1
    known = {
        "threads": "omp_get_max_threads()" if follows else template.num_threads,
        "profile": kernel.maybe_codegen_profile(),
    }
    for name, value in (known | values).items():
        text = text.replace(f"@{name}@", str(value))
    return str(template.header().getvalue()) + text


def strides_of(sizes: Sequence[Any]) -> list[Any]:
    """Return the strides of images of these sizes, channels last."""
    _, channels, height, width = sizes
    return [height * width * channels, 1, width * channels, channels]


def _hint(size: Any) -> int:
    """Return a size of the example; that of a typical image if it depends on data."""
    hint = size if isinstance(size, int) else size.node.hint
    return 32 if hint is None else int(hint)
