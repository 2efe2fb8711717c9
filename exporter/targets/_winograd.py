"""Convolutions of 3x3 pixels in float32 by Winograd's algorithm F(2x2, 3x3), for packages on x86 CPUs.

Each tile of 4x4 pixels of the input yields 2x2 of the output with 16 multiplications for each pair of channels, where a
plain convolution needs 36. The filters are transformed when the package is compiled, in float64.

A convolution is then 16 products of matrices, one for each place in a tile, with the tiles as rows. Each thread
transforms a block of tiles that stays in its L2 cache, multiplies it by all filters and transforms the result back.
Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from exporter.targets import _gemm, _inductor

TILES = 48  # with fewer tiles in the example, a convolution keeps its filters, which transformed ones exceed in size
CACHE = 0.5  # the part of the L2 cache that a block of tiles may fill
LINE = 16  # floats of a cache line; the rows of a block are this much longer, so that they do not displace each other
PLACES = 16  # in a tile
DEFINITION = r"""
#ifndef EXPORTER_WINOGRAD
#define EXPORTER_WINOGRAD
namespace exporter_winograd {
using Vector = at::vec::Vectorized<float>;
constexpr int64_t WIDTH = Vector::size(), BLOCK = @rows@, COLUMNS = @columns@, VECTORS = COLUMNS / WIDTH;
constexpr int64_t PLACES = 16; // in a tile
constexpr int AHEAD = 512, LINE = 64; // bytes

// A tensor whose channels are adjacent.
template <typename T>
struct Image {
    T* data;
    int64_t images, height, width; // its sizes
    int64_t image, row, pixel; // its strides

    T* at(int64_t n, int64_t y, int64_t x) const { return data + n * image + y * row + x * pixel; }
};

// Multiplies ROWS rows of IN numbers, which are STRIDE apart, by a panel of COLUMNS columns.
template <int ROWS, int64_t IN, int64_t STRIDE>
__attribute__((noinline)) static void multiply(const float* rows, const float* panel, float* to) {
    Vector sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sums[row][n] = Vector(0.0f);
    for (int64_t k = 0; k < IN; k++) {
        const float* from = panel + k * COLUMNS;
#pragma GCC unroll 4
        for (int byte = 0; byte < COLUMNS * int(sizeof(float)); byte += LINE)
            __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD + byte);
        Vector weights[VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) weights[n] = Vector::loadu(from + n * WIDTH);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            const Vector value(rows[row * STRIDE + k]);
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) sums[row][n] = at::vec::fmadd(value, weights[n], sums[row][n]);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sums[row][n].store(to + row * COLUMNS + n * WIDTH);
}

template <int ROWS, int64_t IN, int64_t STRIDE>
inline void multiply_few(int64_t rows, const float* from, const float* panel, float* to) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_few<ROWS - 1, IN, STRIDE>(rows, from, panel, to);
    }
    multiply<ROWS, IN, STRIDE>(from, panel, to);
}

// Transforms the tile at (y, x) of an image; its places are `apart` in `to`. Pixels outside the image are zero.
template <int64_t IN>
inline void transform(const Image<const float>& input, int64_t n, int64_t y, int64_t x, float* to, int64_t apart) {
    alignas(64) static const float zeros[IN] = {};
    const float* pixels[4][4];
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 4; j++) {
            const bool inside = y + i >= 0 && y + i < input.height && x + j >= 0 && x + j < input.width;
            pixels[i][j] = inside ? input.at(n, y + i, x + j) : zeros;
        }
    for (int64_t c = 0; c < IN; c += WIDTH) {
        Vector half[4][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const Vector d0 = Vector::loadu(pixels[0][j] + c), d1 = Vector::loadu(pixels[1][j] + c),
                         d2 = Vector::loadu(pixels[2][j] + c), d3 = Vector::loadu(pixels[3][j] + c);
            half[0][j] = d0 - d2;
            half[1][j] = d1 + d2;
            half[2][j] = d2 - d1;
            half[3][j] = d1 - d3;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            float* place = to + i * 4 * apart + c;
            (half[i][0] - half[i][2]).store(place);
            (half[i][1] + half[i][2]).store(place + apart);
            (half[i][2] - half[i][1]).store(place + 2 * apart);
            (half[i][1] - half[i][3]).store(place + 3 * apart);
        }
    }
}

// Transforms COLUMNS channels of a tile back, from places that are `apart`, and writes the pixels inside the image.
template <bool RELU>
inline void finish(
    const float* from, int64_t apart, const float* bias, const Image<const float>& other, const Image<float>& output,
    int64_t n, int64_t y, int64_t x, int64_t channel) {
    for (int64_t c = 0; c < COLUMNS; c += WIDTH) {
        Vector half[2][4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const float* place = from + j * apart + c;
            const Vector m0 = Vector::loadu(place), m1 = Vector::loadu(place + 4 * apart),
                         m2 = Vector::loadu(place + 8 * apart), m3 = Vector::loadu(place + 12 * apart);
            half[0][j] = m0 + m1 + m2;
            half[1][j] = m1 - m2 - m3;
        }
        const Vector added = bias ? Vector::loadu(bias + channel + c) : Vector(0.0f);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            if (y + i >= output.height) break;
            const Vector pair[2] = {half[i][0] + half[i][1] + half[i][2], half[i][1] - half[i][2] - half[i][3]};
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                if (x + j >= output.width) break;
                Vector value = pair[j] + added;
                if (other.data) value = value + Vector::loadu(other.at(n, y + i, x + j) + channel + c);
                if (RELU) value = at::vec::maximum(value, Vector(0.0f)); // NaN stays NaN
                value.store(output.at(n, y + i, x + j) + channel + c);
            }
        }
    }
}

// A block has at most MOST tiles. `filters` has a panel of COLUMNS channels of the output after another, of each the
// places, and of these the channels of the input.
template <int64_t IN, int64_t OUT, int64_t MOST, bool RELU>
void convolve(
    Image<const float> input, const float* filters, const float* bias, Image<const float> other, Image<float> output,
    int64_t padding_y, int64_t padding_x) {
    constexpr int64_t STRIDE = IN + @line@, PANELS = OUT / COLUMNS;
    const int64_t down = (output.height + 1) / 2, across = (output.width + 1) / 2;
    const int64_t tiles = output.images * down * across, threads = omp_get_max_threads();
    int64_t blocks = (tiles + MOST - 1) / MOST, groups = 1; // groups of panels, each for one task
    if (blocks < threads)
        groups = std::min(PANELS, (threads + blocks - 1) / std::max<int64_t>(blocks, 1));
    else
        blocks = (blocks + threads - 1) / threads * threads;
    const int64_t size = blocks ? (tiles + blocks - 1) / blocks : 0;
#pragma omp parallel
    {
        std::unique_ptr<float[]> memory(new float[PLACES * size * (STRIDE + COLUMNS)]);
        float *transformed = memory.get(), *multiplied = transformed + PLACES * size * STRIDE;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < blocks * groups; task++) {
            const int64_t group = task % groups, first = task / groups * size, here = std::min(tiles - first, size);
            if (here <= 0) continue;
            for (int64_t tile = first; tile < first + here; tile++)
                transform<IN>(
                    input, tile / across / down, tile / across % down * 2 - padding_y, tile % across * 2 - padding_x,
                    transformed + (tile - first) * STRIDE, size * STRIDE);
            const int64_t parts = (here + BLOCK - 1) / BLOCK, rows = (here + parts - 1) / parts;
            for (int64_t panel = PANELS * group / groups; panel < PANELS * (group + 1) / groups; panel++) {
                for (int64_t place = 0; place < PLACES; place++)
                    for (int64_t row = 0; row < here; row += rows)
                        multiply_few<BLOCK, IN, STRIDE>(
                            std::min(rows, here - row), transformed + (place * size + row) * STRIDE,
                            filters + (panel * PLACES + place) * IN * COLUMNS,
                            multiplied + (place * size + row) * COLUMNS);
                for (int64_t tile = first; tile < first + here; tile++)
                    finish<RELU>(
                        multiplied + (tile - first) * COLUMNS, size * COLUMNS, bias, other, output,
                        tile / across / down, tile / across % down * 2, tile % across * 2, panel * COLUMNS);
            }
        }
    }
}
} // namespace exporter_winograd
#endif
"""
CALL = r"""
extern "C"
@signature@
{
    exporter_winograd::convolve<@in@, @out@, @most@, @relu@>(
        @input@, @filters@, @bias@, @other@, @output@, @padding_y@, @padding_x@);
}
"""


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let inductor compute convolutions by this algorithm within the context, where it serves.

    They need AVX2, float32, a packed constant filter of 3x3, strides and dilation of 1, one group, as many channels as
    fill whole vectors, and at least TILES tiles in the example.
    """
    if not _gemm.usable():
        yield
        return
    import torch
    from torch._inductor import lowering
    from torch._inductor.codegen.cpp import CppScheduling

    table: Any = lowering.lowerings
    plain, in_place = torch.ops.mkldnn._convolution_pointwise, torch.ops.mkldnn._convolution_pointwise_
    scheduling: Any = CppScheduling
    kind, fuses = _kind(), scheduling.can_fuse_vertical

    def can_fuse(self: Any, one: Any, other: Any) -> bool:
        node = one.get_template_node() if one.is_template() else None
        return not isinstance(getattr(node, "template", None), kind) and bool(fuses(self, one, other))

    with contextlib.ExitStack() as changed:
        for operator, others in ((plain.default, 0), (plain.binary, 1), (in_place.binary, 1)):
            if operator in table:
                lower = _lowering(kind, others, table[operator])
                changed.enter_context(_inductor.with_entry(table, operator, lower))
        changed.enter_context(mock.patch.object(scheduling, "can_fuse_vertical", can_fuse))
        yield


def _lowering(kind: Any, others: int, lower: Any) -> Any:
    """Return a lowering for a convolution to which `others` tensors, 0 or 1, are added.

    Inductor passes the input of the convolution first, to the operator in place too.
    """
    from torch._inductor import ir
    from torch._inductor.codegen.cpp_utils import create_epilogue_with_attr

    def lowered(x: Any, *args: Any) -> Any:
        other, rest = args[:others], args[others:]
        weight, bias, padding, stride, dilation, groups, *added, activation, scalars, algorithm = rest
        layout = None
        if added in ([], ["add", None], ["add", 1]) and {*stride, *dilation, groups} == {1}:
            layout = _layout(x, weight, [*padding] * (3 - len(padding)))
        if layout is None or not all(_alike(one, layout) for one in other):
            return lower(x, *args)
        images = [ir.ExternKernel.require_stride_order(one, [3, 0, 2, 1]) for one in (x, *other)]
        if any(image.get_stride()[1] != 1 for image in images):
            return lower(x, *args)
        biases = [] if bias is None else [ir.ExternKernel.realize_input(bias)]
        inputs = [images[0], _transformed(weight), *biases, *images[1:]]
        template = kind(inputs, layout, activation == "relu", [*padding] * (3 - len(padding)), bool(biases))
        made = template.generate().output_node()
        _inductor.forget(weight)
        if activation in (None, "none", "relu"):
            return made
        return ir.TensorBox.create(create_epilogue_with_attr(made, activation, scalars=scalars, algorithm=algorithm))

    return lowered


def _layout(x: Any, weight: Any, padding: Any) -> Any:
    """Return the layout of a convolution's output, with the channels last; None if the kernel does not serve."""
    import torch
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    filters = V.graph.constants.get(weight.get_name())
    sizes, block = x.get_size(), _block()
    if filters is None or block is None or len(sizes) != 4 or x.get_dtype() is not torch.float32:
        return None
    outputs, inputs, *pixels = map(int, filters.shape)
    if filters.dtype is not torch.float32 or pixels != [3, 3] or outputs % block[1] or inputs % (block[1] // 2):
        return None
    images, _, height, width = sizes
    height, width = height + 2 * padding[0] - 2, width + 2 * padding[1] - 2
    if _hint(images) * ((_hint(height) + 1) // 2) * ((_hint(width) + 1) // 2) < TILES:
        return None
    strides = [height * width * outputs, 1, width * outputs, outputs]
    return ir.FixedLayout(x.get_device(), torch.float32, [images, outputs, height, width], strides)


def _block() -> tuple[int, int] | None:
    """Return the rows and columns of a block in registers; None if the code that is generated now lacks AVX2."""
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, pick_vec_isa

    found = pick_vec_isa()
    blocks = [block[:2] for isa, block in ((VecAVX512, _gemm.AVX512), (VecAVX2, _gemm.AVX2)) if isinstance(found, isa)]
    return blocks[0] if blocks else None


def _hint(size: Any) -> int:
    """Return a size of the example, or that of a typical image if it depends on data."""
    from torch._inductor.virtualized import V

    sizes: Any = V.graph.sizevars
    hint = getattr(sizes, "optimization_hint", None) or sizes.size_hint  # torch 2.11 has the latter
    return int(hint(size, fallback=32))


def _alike(other: Any, layout: Any) -> bool:
    """Return whether a tensor has the size of an output, so that the kernel can add it."""
    from torch._inductor.virtualized import V

    sizes = other.get_size()
    equal = V.graph.sizevars.statically_known_equals
    return (
        other.get_dtype() is layout.dtype
        and len(sizes) == len(layout.size)
        and all(equal(one, size) for one, size in zip(sizes, layout.size, strict=True))
    )


def _transformed(weight: Any) -> Any:
    """Return the constant that holds the transformed filters: [panel, place, channel of the input, column]."""
    import torch
    from torch._inductor.virtualized import V

    filters = V.graph.constants[weight.get_name()]
    transform = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    modes: Any = torch.utils._python_dispatch
    with modes._disable_current_modes():
        dense = (filters.to_dense() if filters.is_mkldnn else filters).detach().double()
        outputs, inputs = dense.shape[:2]
        block = _block()
        assert block is not None
        tiles = torch.einsum("ai,ocij,bj->abco", transform, dense, transform)
        panels = tiles.reshape(16, inputs, outputs // block[1], block[1]).permute(2, 0, 1, 3)
        add: Any = V.graph.add_tensor_constant
        return add(panels.float().contiguous(), name=f"{weight.get_name()}_winograd")


def _kind() -> type[Any]:
    """Return the class of the template for inductor."""
    import torch
    from torch._inductor.codegen.cpp_template import CppTemplate
    from torch._inductor.utils import parallel_num_threads

    class Winograd(CppTemplate):
        def __init__(self, inputs: Any, layout: Any, relu: bool, padding: list[int], biased: bool) -> None:
            super().__init__("winograd", inputs, layout, parallel_num_threads())
            self.relu, self.padding, self.biased = relu, padding, biased

        def render(self, kernel: Any, template_buffer_node: Any = None, **_: Any) -> str:  # type: ignore[override]
            x, filters, *others = self.input_nodes
            bias = others.pop(0) if self.biased else None
            other = others[0] if others else None
            output: Any = self.output_node if template_buffer_node is None else template_buffer_node
            signature = kernel.def_kernel(
                inputs={"X": x, "W": filters, "B": bias, "other": other}, outputs={"Y": output}
            )
            rows, columns = _block() or (0, 0)
            channels = int(x.get_size()[1])
            apart = PLACES * (channels + LINE + columns) * 4  # bytes of a tile
            most = int(torch.cpu.get_capabilities()["l2_cache_size"] * CACHE / apart)

            def image(node: Any, data: str) -> str:
                sizes = [kernel.size(node, at) for at in (0, 2, 3)]
                return f"{{{', '.join([data, *sizes, *(kernel.stride(node, at) for at in (0, 2, 3))])}}}"

            def start(node: Any) -> str:
                return f"&({kernel.index(node, [0] * len(node.get_size()))})"

            values = {
                "signature": signature,
                "in": channels,
                "out": int(output.get_size()[1]),
                "most": max(rows, most),
                "relu": str(self.relu).lower(),
                "input": image(x, start(x)),
                "filters": start(filters),
                "bias": "nullptr" if bias is None else start(bias),
                "other": "{}" if other is None else image(other, start(other)),
                "output": image(output, "Y"),
                "padding_y": self.padding[0],
                "padding_x": self.padding[1],
                "rows": rows,
                "columns": columns,
                "line": LINE,
            }
            text = self.header().getvalue() + DEFINITION + CALL
            for name, value in values.items():
                text = text.replace(f"@{name}@", str(value))
            return text

    return Winograd
