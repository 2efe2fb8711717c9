"""Convolutions of 3x3 pixels in float32 by Winograd's algorithm F(2x2, 3x3), for packages on x86 CPUs.

Each tile of 4x4 pixels of the input yields 2x2 of the output with 16 multiplications for each pair of channels, where a
plain convolution needs 36. The filters are transformed when the package is compiled, in float64.

A convolution is then 16 products of matrices, one for each place in a tile, with the tiles as rows. Each thread
transforms a block of tiles that stays in its L2 cache, multiplies it by all filters and transforms the result back.
Rounding errors are about as large as oneDNN's. Because pixels are subtracted, an output that would be infinite is NaN.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, https://arxiv.org/abs/1509.09308.

This file is long because it contains the kernel in C++.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from exporter.targets import _convolutions, _gemm, _inductor

if TYPE_CHECKING:
    import torch

TILES = 49  # fewer in each image of the example are left to the library: transformed filters are 16/9 as large
CACHE = 0.5  # the part of the L2 cache that a block of tiles may fill
LINE = 16  # floats of a cache line. The rows of a block are padded by one, so that they do not evict each other
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

// A block has at most MOST tiles. `filters` is laid out as [panel of COLUMNS output channels][place][input channel]
// [column].
template <int64_t IN, int64_t OUT, int64_t MOST, bool RELU>
void convolve(
    Image<const float> input, const float* filters, const float* bias, Image<const float> other, Image<float> output,
    int64_t padding_y, int64_t padding_x, int64_t threads) {
    constexpr int64_t STRIDE = IN + @line@, PANELS = OUT / COLUMNS;
    const int64_t down = (output.height + 1) / 2, across = (output.width + 1) / 2;
    const int64_t tiles = output.images * down * across;
    int64_t blocks = (tiles + MOST - 1) / MOST, groups = 1; // groups of panels, each for one task
    if (blocks < threads)
        groups = std::min(PANELS, (threads + blocks - 1) / std::max<int64_t>(blocks, 1));
    else
        blocks = (blocks + threads - 1) / threads * threads;
    const int64_t size = blocks ? (tiles + blocks - 1) / blocks : 0;
#pragma omp parallel num_threads(threads)
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
    @profile@
    exporter_winograd::convolve<@in@, @out@, @most@, @relu@>(
        @input@, @filters@, @bias@, @other@, @output@, @padding_y@, @padding_x@, @threads@);
}
"""


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let inductor compute convolutions by this algorithm within the context, where it applies.

    They need AVX2, float32, constant filters of 3x3, strides and dilation of 1, one group, output channels that fill
    two vectors each time and input channels that fill one, and images of at least TILES tiles in the example.
    """
    import torch._inductor.compile_fx  # first, because its modules import each other

    if not torch.backends.mkldnn.is_available() or not _gemm.knows_caches():
        yield
        return
    from torch._inductor import lowering

    table: Any = lowering.lowerings
    kind, filters = _kind(), _convolutions.Filters()
    with contextlib.ExitStack() as changed:
        for operator, others in _convolutions.operators().items():
            if operator in table:
                lower = _lowering(kind, filters, others, table[operator])
                changed.enter_context(_inductor.with_entry(table, operator, lower))
        yield


def _lowering(kind: Any, filters: _convolutions.Filters, others: int, lower: Any) -> Any:
    """Return a lowering for a convolution to which `others` tensors, 0 or 1, are added.

    Inductor passes the input of the convolution first, to the operator in place too.
    """
    from torch._inductor import ir
    from torch._inductor.codegen.cpp_utils import create_epilogue_with_attr
    from torch._inductor.virtualized import V

    def lowered(x: Any, *args: Any) -> Any:
        other, rest = args[:others], args[others:]
        weight, bias, padding, stride, dilation, groups, *added, activation, scalars, algorithm = rest
        padding = [*padding, *padding][:2]
        block, layout = _block(), None
        if block and added in ([], ["add", None], ["add", 1]) and {*stride, *dilation, groups} == {1}:
            layout = _layout(x, weight, padding, block)
        if block is None or layout is None or not all(_alike(one, layout) for one in other):
            return lower(x, *args)
        for one in (x, *other):
            one.realize()
        images = [ir.ExternKernel.require_stride_order(one, [3, 0, 2, 1]) for one in (x, *other)]
        if any(image.get_stride()[1] != 1 for image in images):
            return lower(x, *args)
        biases = [] if bias is None else [ir.ExternKernel.require_contiguous(bias)]
        transformed = filters.of(weight, "winograd", functools.partial(_transform, columns=block[1]))
        inputs = [images[0], transformed, *biases, *images[1:]]
        made = kind(inputs, layout, block, activation == "relu", padding, bool(biases)).generate().output_node()
        V.graph.no_fuse_buffer_names.add(made.get_name())
        if activation in (None, "none", "relu"):
            return made
        return ir.TensorBox.create(create_epilogue_with_attr(made, activation, scalars=scalars, algorithm=algorithm))

    return lowered


def _transform(filters: torch.Tensor, columns: int) -> torch.Tensor:
    """Transform filters [output channel, input channel, 3, 3], in float64."""
    import torch

    transform = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)
    outputs, inputs = filters.shape[:2]
    tiles = torch.einsum("ai,ocij,bj->abco", transform, filters.double(), transform)
    panels = tiles.reshape(PLACES, inputs, outputs // columns, columns).permute(2, 0, 1, 3)
    return panels.float().contiguous()


def _layout(x: Any, weight: Any, padding: list[int], block: tuple[int, int]) -> Any:
    """Return the layout of a convolution's output, with the channels last; None if the algorithm does not apply."""
    import torch
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    filters, sizes = V.graph.constants.get(weight.get_name()), x.get_size()
    if filters is None or len(sizes) != 4 or {x.get_dtype(), filters.dtype} != {torch.float32}:
        return None
    outputs, inputs, *pixels = map(int, filters.shape)
    if pixels != [3, 3] or outputs % block[1] or inputs % (block[1] // 2):
        return None
    images, _, height, width = sizes
    height, width = height + 2 * padding[0] - 2, width + 2 * padding[1] - 2
    if (_hint(height) + 1) // 2 * ((_hint(width) + 1) // 2) < TILES:
        return None
    made = [images, outputs, height, width]
    return ir.FixedLayout(x.get_device(), torch.float32, made, _convolutions.strides_of(made))


def _block() -> tuple[int, int] | None:
    """Return the rows and columns of a block in registers; None if inductor generates code without AVX2."""
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, pick_vec_isa

    found = pick_vec_isa()
    blocks = [block[:2] for isa, block in ((VecAVX512, _gemm.AVX512), (VecAVX2, _gemm.AVX2)) if isinstance(found, isa)]
    return blocks[0] if blocks else None


def _hint(size: Any) -> int:
    """Return a size of the example, or that of a typical image if it depends on data."""
    from torch._inductor.virtualized import V

    return int(V.graph.sizevars.optimization_hint(size, fallback=32))


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


def _kind() -> type[Any]:
    """Return the class of the template for inductor."""
    import torch
    from torch._inductor.codegen.cpp_template import CppTemplate
    from torch._inductor.utils import parallel_num_threads

    class Winograd(CppTemplate):
        def __init__(
            self, inputs: Any, layout: Any, block: tuple[int, int], relu: bool, padding: list[int], biased: bool
        ) -> None:
            super().__init__("winograd", inputs, layout, parallel_num_threads())
            self.block, self.relu, self.padding, self.biased = block, relu, padding, biased

        def render(self, kernel: Any, template_buffer_node: Any = None, **_: Any) -> str:  # type: ignore[override]
            x, filters, *others = self.input_nodes
            bias = others.pop(0) if self.biased else None
            other = others[0] if others else None
            output: Any = self.output_node if template_buffer_node is None else template_buffer_node
            signature = kernel.def_kernel(
                inputs={"X": x, "W": filters, "B": bias, "other": other}, outputs={"Y": output}
            )
            rows, columns = self.block
            channels = int(filters.get_size()[2])
            bytes_of_tile = PLACES * (channels + LINE + columns) * 4
            most = int(torch.cpu.get_capabilities()["l2_cache_size"] * CACHE / bytes_of_tile)

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
            return _convolutions.render(self, kernel, DEFINITION + CALL, values)

    return Winograd
