"""Convolutions of bytes for packages on x86 CPUs with AVX512-VNNI or AMX.

oneDNN, which inductor calls for them, spends time on each call beside the arithmetic. Here the arithmetic is in the
package (`benchmarks/products.py int8-convolutions`). The bytes of a row of the kernel are adjacent in an image with the
channels last, so that they are multiplied like a row of a matrix, in steps of four, or of 64 with AMX. Borders are
filled with the input's zero point. Sums are exact; they are scaled, added to, rectified and quantized in registers.

This file is long because it contains the kernel in C++.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exporter.targets import _amx, _convolutions, _gemm, _inductor

if TYPE_CHECKING:
    import torch

BLOCK, COLUMNS, DEPTH = 14, 32, 4  # pixels and output channels of a block in registers, and bytes of a step
MOST_IMAGES, MOST_PIXELS = 8, 6000  # of an example's output; if both are exceeded, oneDNN is faster with AMX
CHANNELS_LAST, CONTIGUOUS = (3, 0, 2, 1), (3, 2, 1, 0)  # orders of strides
DEFINITION = r"""
#ifndef EXPORTER_INT8_CONVOLUTION
#define EXPORTER_INT8_CONVOLUTION
namespace exporter_int8_convolution {
constexpr int64_t BLOCK = @block@, COLUMNS = @columns@, DEPTH = 4;
constexpr int VECTORS = COLUMNS / 16, AHEAD = 1024; // bytes

// Not _mm512_dpbusd_epi32, with which GCC 12 keeps the sums of a block on the stack.
inline void multiply_add(__m512i& sum, __m512i bytes, __m512i weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(weights));
}

// What becomes of the sums. `Shape` has the sizes of the convolution and the constants of its quantization.
template <typename Other, typename Output>
struct Result {
    const int32_t* offsets; // of the sums, for the zero point of the input
    const float *scales, *biases; // of the output channels
    const Other* other; // is added, if any
    Output* to;
};

inline __m512 load(const float* from, int32_t) { return _mm512_loadu_ps(from); }

inline __m512 load(const uint8_t* from, int32_t zero) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(zero)));
}

template <typename Shape>
inline void store(__m512 value, float* to) {
    _mm512_storeu_ps(to, value);
}

template <typename Shape>
inline void store(__m512 value, uint8_t* to) {
    const __m512 scaled = _mm512_min_ps(_mm512_mul_ps(value, _mm512_set1_ps(Shape::INVERSE)), _mm512_set1_ps(255));
    const __m512i rounded = _mm512_cvtps_epi32(scaled);
    const __m512i placed = _mm512_add_epi32(rounded, _mm512_set1_epi32(Shape::OUTPUT_ZERO));
    const __m512i positive = _mm512_max_epi32(placed, _mm512_setzero_si512());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(positive));
}

// Makes outputs of the sums of 16 channels of adjacent pixels; `stride` is from one pixel's sums to the next.
template <typename Shape, typename... Types>
inline void finish(
    const int32_t* sums, int64_t stride, int64_t pixels, const Result<Types...>& result, int64_t channel,
    int64_t first) {
    const __m512i offset = _mm512_loadu_si512(result.offsets + channel);
    const __m512 scale = _mm512_loadu_ps(result.scales + channel), bias = _mm512_loadu_ps(result.biases + channel);
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        const int64_t place = (first + pixel) * Shape::OUT + channel;
        const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums + pixel * stride), offset);
        __m512 value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, bias);
        if (Shape::ADDS) {
            const __m512 other = load(result.other + place, Shape::OTHER_ZERO);
            value = _mm512_fmadd_ps(other, _mm512_set1_ps(Shape::OTHER_SCALE), value);
        }
        if (Shape::RELU) value = _mm512_max_ps(value, _mm512_setzero_ps());
        store<Shape>(value, result.to + place);
    }
}

// Computes COLUMNS channels of DOWN x ACROSS pixels; `from` is the first pixel's first byte of the input.
template <typename Shape, int DOWN, int ACROSS, typename... Types>
__attribute__((noinline)) static void multiply(
    const uint8_t* from, const int8_t* panel, const Result<Types...>& result, int64_t channel, int64_t first) {
    constexpr int PIXELS = DOWN * ACROSS;
    __m512i sums[PIXELS][VECTORS];
#pragma GCC unroll 16
    for (int pixel = 0; pixel < PIXELS; pixel++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sums[pixel][n] = _mm512_setzero_si512();
    for (int64_t k = 0; k < Shape::KERNEL_HEIGHT * Shape::LENGTH; k += DEPTH) {
        const uint8_t* bytes = from + k + k / Shape::LENGTH * (Shape::ROW - Shape::LENGTH);
        __m512i weights[VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) {
            __builtin_prefetch(panel + k * COLUMNS + AHEAD + n * 64);
            weights[n] = _mm512_loadu_si512(panel + k * COLUMNS + n * 64);
        }
#pragma GCC unroll 16
        for (int pixel = 0; pixel < PIXELS; pixel++) {
            int32_t four;
            std::memcpy(
                &four, bytes + pixel / ACROSS * Shape::STRIDE_Y * Shape::ROW + pixel % ACROSS * Shape::STEP, DEPTH);
            const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++)
                multiply_add(sums[pixel][n], value, weights[n]);
        }
    }
    alignas(64) int32_t stored[PIXELS][COLUMNS];
#pragma GCC unroll 16
    for (int pixel = 0; pixel < PIXELS; pixel++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) _mm512_store_si512(stored[pixel] + n * 16, sums[pixel][n]);
    for (int n = 0; n < VECTORS; n++)
        for (int down = 0; down < DOWN; down++)
            finish<Shape>(
                stored[down * ACROSS] + n * 16, COLUMNS, ACROSS, result, channel + n * 16,
                first + down * Shape::OUT_WIDTH);
}

#if @tiles@
// Computes COLUMNS channels of a tile of adjacent pixels, or of TWO, whose first bytes are `next` apart.
template <typename Shape, bool TWO>
__attribute__((noinline)) static void multiply_tile(
    const uint8_t* from, int64_t next, const int8_t* panel, int32_t (&sums)[4][exporter_amx::TILE][16]) {
    constexpr int64_t LINE = exporter_amx::LINE, WEIGHTS = COLUMNS * DEPTH;
    exporter_amx::complete(from);
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) _tile_zero(2);
    if (TWO) _tile_zero(3);
    for (int64_t y = 0; y < Shape::KERNEL_HEIGHT; y++, from += Shape::ROW) {
        for (int64_t k = 0; k < Shape::LENGTH; k += LINE, panel += LINE * COLUMNS) {
#pragma GCC unroll 32
            for (int line = 0; line < COLUMNS; line++) __builtin_prefetch(panel + 2 * AHEAD + line * LINE);
            _tile_loadd(4, from + k, Shape::STEP);
            _tile_loadd(6, panel, WEIGHTS);
            _tile_dpbusd(0, 4, 6);
            _tile_loadd(7, panel + LINE, WEIGHTS);
            _tile_dpbusd(1, 4, 7);
            if (TWO) {
                _tile_loadd(5, from + k + next, Shape::STEP);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
        }
    }
    _tile_stored(0, sums[0], LINE);
    _tile_stored(1, sums[1], LINE);
    if (TWO) _tile_stored(2, sums[2], LINE);
    if (TWO) _tile_stored(3, sums[3], LINE);
}

// Computes COLUMNS channels of DOWN rows of the output, two tiles at a time.
template <typename Shape, int DOWN, typename... Types>
inline void multiply_tiles(
    const uint8_t* row, const int8_t* panel, const Result<Types...>& result, int64_t channel, int64_t first) {
    constexpr int64_t PARTS = Shape::PARTS, TILES = DOWN * PARTS, WIDE = Shape::WIDE;
    constexpr int64_t NEXT = DOWN > 1 ? Shape::STRIDE_Y * Shape::ROW : WIDE * Shape::STEP;
    alignas(64) int32_t sums[4][exporter_amx::TILE][16];
    for (int64_t tile = 0; tile < TILES; tile += 2) {
        const int64_t here = std::min<int64_t>(2, TILES - tile);
        auto* one = here == 2 ? multiply_tile<Shape, true> : multiply_tile<Shape, false>;
        one(row + tile * NEXT, NEXT, panel, sums);
        for (int64_t n = 0; n < here * VECTORS; n++) {
            const int64_t at = tile + n / VECTORS, x = DOWN > 1 ? 0 : at * WIDE;
            const int64_t place = DOWN > 1 ? first + at * Shape::OUT_WIDTH : first + x;
            const int64_t pixels = std::min<int64_t>(WIDE, Shape::OUT_WIDTH - x);
            finish<Shape>(sums[n][0], 16, pixels, result, channel + n % VECTORS * 16, place);
        }
    }
}
#endif

// Computes DOWN rows of the output from `y` on; `row` is the first row of the input that they need.
template <typename Shape, int DOWN, typename... Types>
inline void multiply_rows(
    const uint8_t* row, const int8_t* panel, const Result<Types...>& result, int64_t channel, int64_t y) {
    constexpr int WIDE = Shape::WIDE, PARTS = Shape::PARTS, LAST = Shape::OUT_WIDTH - (PARTS - 1) * WIDE;
    const int64_t first = y * Shape::OUT_WIDTH;
#if @tiles@
    if (exporter_amx::permitted) return multiply_tiles<Shape, DOWN>(row, panel, result, channel, first);
    for (int64_t pixel = 0; pixel < DOWN * Shape::OUT_WIDTH; pixel++) {
        const int64_t down = pixel / Shape::OUT_WIDTH, x = pixel % Shape::OUT_WIDTH;
        const uint8_t* from = row + down * Shape::STRIDE_Y * Shape::ROW + x * Shape::STEP;
        multiply<Shape, 1, 1>(from, panel, result, channel, first + pixel);
    }
#else
    for (int64_t x = 0; x < (PARTS - 1) * WIDE; x += WIDE)
        multiply<Shape, DOWN, WIDE>(row + x * Shape::STEP, panel, result, channel, first + x);
    constexpr int64_t X = (PARTS - 1) * WIDE;
    multiply<Shape, DOWN, LAST>(row + X * Shape::STEP, panel, result, channel, first + X);
#endif
}

// Copies rows of an image from `first` on, with borders and the channels last. Rows outside the image are borders.
template <typename Shape>
inline void fill(const uint8_t* image, int64_t first, int64_t end, uint8_t* to) {
    constexpr int64_t BORDER = Shape::PADDING_X * Shape::IN, INSIDE = Shape::WIDTH * Shape::IN;
    for (int64_t y = first; y < end; y++, to += Shape::ROW) {
        if (y < 0 || y >= Shape::HEIGHT) {
            std::memset(to, Shape::INPUT_ZERO, Shape::ROW);
            continue;
        }
        std::memset(to, Shape::INPUT_ZERO, BORDER);
        if constexpr (Shape::PLANAR) {
            const uint8_t* row = image + y * Shape::WIDTH;
            for (int64_t x = 0; x < Shape::WIDTH; x++) {
                uint32_t pixel = 0; // its last bytes may be those of the next pixel, which is copied next
                for (int64_t channel = 0; channel < Shape::IN; channel++)
                    pixel |= uint32_t(row[channel * Shape::HEIGHT * Shape::WIDTH + x]) << (8 * channel);
                std::memcpy(to + BORDER + x * Shape::IN, &pixel, DEPTH);
            }
        } else {
            std::memcpy(to + BORDER, image + y * INSIDE, INSIDE);
        }
        std::memset(to + BORDER + INSIDE, Shape::INPUT_ZERO, BORDER);
    }
}

// Where the part of `all` that a thread takes begins.
inline int64_t part(int64_t all, int64_t thread, int64_t threads) { return all * thread / threads; }

// The weights are laid out as [panel of COLUMNS output channels][row of the kernel][step][output channel][byte].
// Threads share the rows of an image or, if the weights are larger than it, the panels.
template <typename Shape, typename... Types>
void convolve(
    const uint8_t* input, const int8_t* weights, const Result<Types...> results, int64_t images, int64_t most_threads) {
    constexpr int64_t INPUTS = Shape::HEIGHT * Shape::WIDTH * Shape::IN;
    constexpr int64_t OUTPUTS = Shape::OUT_HEIGHT * Shape::OUT_WIDTH * Shape::OUT;
    constexpr int64_t PANELS = Shape::OUT / COLUMNS, PANEL = Shape::KERNEL_HEIGHT * Shape::LENGTH * COLUMNS;
    constexpr int64_t DOWN = Shape::DOWN;
    constexpr int64_t GROUPS = (Shape::OUT_HEIGHT + DOWN - 1) / DOWN; // of DOWN rows
    constexpr bool FILLS =
        Shape::PLANAR || Shape::PADDING_Y || Shape::PADDING_X || Shape::BEYOND > DEPTH ||
        Shape::LENGTH != Shape::KERNEL_WIDTH * Shape::IN;
    constexpr bool LARGE = PANELS * PANEL > INPUTS; // weights
#pragma omp parallel num_threads(most_threads)
    {
#if @tiles@
        const exporter_amx::Tiles tiles(Shape::WIDE);
#endif
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t across = LARGE || GROUPS < threads ? std::min(PANELS, threads) : 1, down = threads / across;
        const int64_t column = thread % across, row = thread / across;
        const int64_t start = row < down ? part(GROUPS, row, down) : 0;
        const int64_t end = row < down ? part(GROUPS, row + 1, down) : 0;
        const int64_t first = start * DOWN * Shape::STRIDE_Y - Shape::PADDING_Y;
        const int64_t last = (std::min(end * DOWN, Shape::OUT_HEIGHT) - 1) * Shape::STRIDE_Y - Shape::PADDING_Y;
        const int64_t lines = FILLS && start < end ? last + Shape::KERNEL_HEIGHT - first : 0;
        const int64_t bytes = lines ? lines * Shape::ROW + Shape::BEYOND : 0;
        std::unique_ptr<uint8_t[]> filled(bytes ? new uint8_t[bytes] : nullptr);
        for (int64_t n = 0; n < images && start < end; n++) {
            Result<Types...> result = results;
            if (Shape::ADDS) result.other += n * OUTPUTS;
            result.to += n * OUTPUTS;
            const uint8_t* image = input + n * INPUTS;
            if (FILLS) {
                fill<Shape>(image, first, last + Shape::KERNEL_HEIGHT, filled.get());
                image = filled.get();
            } else {
                image += first * Shape::ROW;
            }
            const int64_t panel = part(PANELS, column, across), panels = part(PANELS, column + 1, across) - panel;
            for (int64_t task = 0; task < panels * (end - start); task++) {
                const int64_t at = panel + (LARGE ? task / (end - start) : task % panels);
                const int64_t group = start + (LARGE ? task % (end - start) : task / panels);
                const uint8_t* from = image + (group - start) * DOWN * Shape::STRIDE_Y * Shape::ROW;
                const int64_t y = group * DOWN, rows = std::min(DOWN, Shape::OUT_HEIGHT - y);
                if (rows == DOWN) {
                    multiply_rows<Shape, DOWN>(from, weights + at * PANEL, result, at * COLUMNS, y);
                } else {
                    for (int64_t rest = 0; rest < rows; rest++)
                        multiply_rows<Shape, 1>(
                            from + rest * Shape::STRIDE_Y * Shape::ROW, weights + at * PANEL, result, at * COLUMNS,
                            y + rest);
                }
            }
        }
    }
}
} // namespace exporter_int8_convolution
#endif
"""
CALL = r"""
namespace { // so that no other package shares the functions for this shape
struct @name@_shape {
    @shape@
};
} // namespace

extern "C"
@signature@
{
    @profile@
    const exporter_int8_convolution::Result<@other_type@, @type@> result{@offsets@, @scales@, @biases@, @other@, Y};
    exporter_int8_convolution::convolve<@name@_shape>(@input@, @weights@, result, @images@, @threads@);
}
"""


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution with static images, and the constants of its quantization."""

    input: Sequence[int]  # channels, height, width
    output: Sequence[int]
    kernel: Sequence[int]  # height, width
    stride: Sequence[int]
    padding: Sequence[int]
    input_zero: int
    inverse: float  # of the output's scale
    zero: int  # of the output
    other: tuple[float, int] | None  # scale and zero point of what is added
    relu: bool
    tiles: bool  # of AMX

    @property
    def planar(self) -> bool:
        """Whether the input has the channels first, which is faster to quantize if there are few."""
        return self.input[0] <= DEPTH

    def constants(self) -> str:
        """Return the definitions of the constants of the kernel's `Shape`."""
        channels, height, width = self.input
        _, down, across = self.output
        most, depth = (_amx.ROWS, _amx.LINE) if self.tiles else (BLOCK, DEPTH)
        parts = math.ceil(across / most)
        wide = math.ceil(across / parts)
        rows = (2 if parts == 1 else 1) if self.tiles else max(most // across, 1)  # with two tiles, one for each row
        length = math.ceil(self.kernel[1] * channels / depth) * depth
        beyond = (parts * wide - across) * self.stride[1] * channels + length - self.kernel[1] * channels
        other_scale, other_zero = self.other or (0.0, 0)
        values = {
            "IN": channels, "HEIGHT": height, "WIDTH": width,
            "OUT": self.output[0], "OUT_HEIGHT": self.output[1], "OUT_WIDTH": self.output[2],
            "KERNEL_HEIGHT": self.kernel[0], "KERNEL_WIDTH": self.kernel[1],
            "LENGTH": length, "DOWN": min(rows, down), "PARTS": parts, "WIDE": wide,
            "BEYOND": (beyond if self.tiles else 0) + DEPTH,  # bytes after an image that are read or written
            "STRIDE_Y": self.stride[0], "STEP": self.stride[1] * channels,
            "PADDING_Y": self.padding[0], "PADDING_X": self.padding[1],
            "ROW": (width + 2 * self.padding[1]) * channels,
            "INPUT_ZERO": self.input_zero, "OUTPUT_ZERO": self.zero, "OTHER_ZERO": other_zero,
            "ADDS": int(self.other is not None), "RELU": int(self.relu),
            "PLANAR": int(self.planar),
        }  # fmt: skip
        whole = ", ".join(f"{name} = {value}" for name, value in values.items())
        scales = f"INVERSE = {self.inverse.hex()}, OTHER_SCALE = {float(other_scale).hex()}"
        return f"static constexpr int64_t {whole};\n    static constexpr float {scales};"


def panels(weight: torch.Tensor, length: int = DEPTH) -> torch.Tensor:
    """Lay out an int8 weight [output channel, input channel, y, x] as the kernel reads it.

    Rows of the kernel are filled to a multiple of `length` bytes. The result is [panel, row of the kernel, step, output
    channel of the panel, byte of the step].
    """
    import torch

    outputs, inputs, height, width = weight.shape
    rows = weight.permute(0, 2, 3, 1).reshape(outputs, height, width * inputs)
    steps = math.ceil(width * inputs / length) * length // DEPTH
    filled = torch.nn.functional.pad(rows, (0, steps * DEPTH - width * inputs))
    return filled.reshape(outputs // COLUMNS, COLUMNS, height, steps, DEPTH).permute(0, 2, 3, 1, 4).contiguous()


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let inductor compute int8 convolutions by this kernel within the context, where it applies.

    They need a CPU with AVX512-VNNI, quantized inputs in uint8, an output in uint8 or float32, images of static size,
    one group, no dilation, output channels that fill COLUMNS each time, constant weights, scales and biases, and no
    activation but ReLU. With AMX, examples with many images and pixels stay with the library.
    """
    import torch._inductor.compile_fx  # first, because its modules import each other

    if not torch.backends.mkldnn.is_available() or _gemm.vnni() is None:
        yield
        return
    from torch._inductor import lowering

    table: Any = lowering.lowerings
    kind, plain, adding = _kind(), torch.ops.onednn.qconv_pointwise, torch.ops.onednn.qconv2d_pointwise
    operators = [getattr(packet, name) for packet in (plain, adding) for name in packet.overloads()]
    filters = _convolutions.Filters()
    with contextlib.ExitStack() as changed:
        for operator in operators:
            if operator in table:
                lower = _lowering(kind, filters, operator, table[operator])
                changed.enter_context(_inductor.with_entry(table, operator, lower))
        yield


def _lowering(kind: Any, filters: _convolutions.Filters, operator: Any, lower: Any) -> Any:
    """Return a lowering by the kernel where it applies."""
    import torch
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    modes: Any = torch.utils._python_dispatch
    names = [argument.name for argument in operator._schema.arguments]

    def lowered(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        found = _convolution(given)
        if found is None:
            return lower(*args)
        x, weight, other = given["qx"], given["qw"], given.get("qaccum")
        sizes = [x.get_size()[0], *found.output]
        if other is not None and not all(map(V.graph.sizevars.statically_known_equals, other.get_size(), sizes)):
            return lower(*args)
        images = [one for one in (x, other) if one is not None]
        for one in images:
            one.realize()
        orders = [CONTIGUOUS if found.planar else CHANNELS_LAST, CHANNELS_LAST]
        images = [
            ir.ExternKernel.require_stride_order(one, list(order)) for one, order in zip(images, orders, strict=False)
        ]
        if not all(_is_dense(one, order) for one, order in zip(images, orders, strict=False)):
            return lower(*args)
        with modes._disable_current_modes():
            numbers = [V.graph.add_tensor_constant(one) for one in _numbers(given, filters.dense(weight))]
        layout = ir.FixedLayout(x.get_device(), given["output_dtype"], sizes, _convolutions.strides_of(sizes))
        length = _amx.LINE if found.tiles else DEPTH
        packed = filters.of(weight, f"panels{length}", functools.partial(panels, length=length))
        inputs = [images[0], packed, *numbers, *images[1:]]
        made = kind(inputs, layout, found).generate().output_node()
        V.graph.no_fuse_buffer_names.add(made.get_name())
        return made

    return lowered


def _convolution(given: dict[str, Any]) -> Convolution | None:
    """Return what an operator of inductor computes, from its arguments by name; None if the kernel does not apply."""
    import torch
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.virtualized import V

    x, weight, other, dtype = given["qx"], given["qw"], given.get("qaccum"), given["output_dtype"]
    activation, types = given.get("unary_attr", given.get("attr")), (torch.uint8, torch.float32)
    if (
        not isinstance(pick_vec_isa(), _gemm.vnni())
        or len(x.get_size()) != 4
        or x.get_dtype() is not torch.uint8
        or (other is not None and other.get_dtype() not in types)
        or dtype not in types
        or {given["groups"], *given["dilation"]} != {1}
        or (other is not None and (given["binary_attr"] != "sum" or given["alpha"] not in (None, 1)))
        or activation not in (None, "none", "relu")
    ):
        return None
    filters = _constant(weight)
    if filters is None or len(filters) % COLUMNS:
        return None
    zeros, scale, zero = _constant(given["w_zero_point"]), _constant(given["x_scale"]), _constant(given["x_zero_point"])
    image = [int(size) for size in x.get_size()[1:] if isinstance(size, int) or size.is_Integer]
    constant = [_constant(given[name]) for name in ("w_scale", "bias") if given[name] is not None]
    if len(image) < 3 or any(one is None for one in (zeros, scale, zero, *constant)) or bool(zeros.any()):
        return None
    outputs, inputs, *kernel = map(int, filters.shape)
    stride, padding = ([*given[name], *given[name]][:2] for name in ("stride", "padding"))
    size = [(image[1 + at] + 2 * padding[at] - kernel[at]) // stride[at] + 1 for at in (0, 1)]
    images = V.graph.sizevars.optimization_hint(x.get_size()[0], fallback=1)
    many = images > MOST_IMAGES and images * math.prod(size) > MOST_PIXELS
    if inputs != image[0] or min(size) < 1 or (many and _amx.used()):
        return None
    added = None if other is None else (given["accum_scale"], given["accum_zero_point"])
    made = 1 / given["output_scale"], given["output_zero_point"]
    relu = activation == "relu"
    return Convolution(image, [outputs, *size], kernel, stride, padding, int(zero), *made, added, relu, _amx.used())


def _numbers(given: dict[str, Any], filters: torch.Tensor) -> list[torch.Tensor]:
    """Return the offsets of the sums in int32, and the scales and biases of the output channels in float32."""
    import torch

    scale, zero = float(_constant(given["x_scale"])), int(_constant(given["x_zero_point"]))
    outputs = len(filters)
    offsets = -zero * filters.to(torch.int64).sum((1, 2, 3))
    scales = (_constant(given["w_scale"]).double() * scale).expand(outputs)
    biases = torch.zeros(outputs) if given["bias"] is None else _constant(given["bias"])
    return [offsets.to(torch.int32), scales.float().contiguous(), biases.float().contiguous()]


def _constant(value: Any) -> Any:
    """Return the value of a constant, a number or a tensor; None if it is known only in a call."""
    import torch
    from torch._inductor.virtualized import V

    modes: Any = torch.utils._python_dispatch
    if value is None or isinstance(value, int | float):
        with modes._disable_current_modes():
            return None if value is None else torch.tensor(value)
    try:
        value.realize()  # inductor has small constants as operations
        found = V.graph.constants.get(value.get_name())
    except (AttributeError, NotImplementedError):  # it has no name
        return None
    return found if found is not None and [*found.shape] == [*value.get_size()] else None  # not a part of a constant


def _is_dense(image: Any, order: Sequence[int]) -> bool:
    """Return whether there is nothing between the numbers of an image with this order of strides."""
    from torch._inductor.virtualized import V

    stride, strides = 1, [0] * 4
    for place in sorted(range(4), key=order.__getitem__):
        strides[place], stride = stride, stride * image.get_size()[place]
    equal = V.graph.sizevars.statically_known_equals
    trios = zip(image.get_size(), image.get_stride(), strides, strict=True)
    return all(equal(size, 1) or equal(stride, expected) for size, stride, expected in trios)


def _kind() -> type[Any]:
    """Return the class of the template for inductor."""
    from torch._inductor.codegen.cpp_template import CppTemplate
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
    from torch._inductor.utils import parallel_num_threads

    class Int8Convolution(CppTemplate):
        def __init__(self, inputs: Any, layout: Any, convolution: Convolution) -> None:
            super().__init__("int8_convolution", inputs, layout, parallel_num_threads())
            self.convolution = convolution

        def render(self, kernel: Any, template_buffer_node: Any = None, **_: Any) -> str:  # type: ignore[override]
            names = ("X", "W", "offsets", "scales", "biases", "other")
            inputs = dict.fromkeys(names) | dict(zip(names, self.input_nodes, strict=False))
            output: Any = self.output_node if template_buffer_node is None else template_buffer_node
            signature = kernel.def_kernel(inputs=inputs, outputs={"Y": output})

            def start(name: str) -> str:
                node: Any = inputs[name]
                return "nullptr" if node is None else f"&({kernel.index(node, [0] * len(node.get_size()))})"

            values = {
                "name": kernel.kernel_name,
                "signature": signature,
                "shape": self.convolution.constants(),
                "input": start("X"),
                "weights": start("W"),
                **{name: start(name) for name in names[2:]},
                "type": DTYPE_TO_CPP[output.get_dtype()],
                "other_type": DTYPE_TO_CPP[(inputs["other"] or output).get_dtype()],
                "images": kernel.size(inputs["X"], 0),
                "block": BLOCK,
                "columns": COLUMNS,
                "tiles": int(self.convolution.tiles),
            }
            text = (_amx.DEFINITION if self.convolution.tiles else "") + DEFINITION + CALL
            return _convolutions.render(self, kernel, text, values)

    return Int8Convolution
