"""A micro-kernel for matrix products by constant weights on x86 CPUs, for inductor's GEMM template.

A product of a few rows takes at least the time to read its weight. oneDNN, which inductor calls for it, takes half as
long again. Inductor's own micro-kernel reads the rows with large strides, so that they displace each other in the
cache, and loses accumulators to the stack.

This kernel keeps as many accumulators as there are registers, reads rows that are packed once for each block, and
prefetches the weight. It multiplies rows in float32 by weights in float32, float16 or int8, and rows in uint8 by
weights in int8. For many rows in float32 it is between 0.88 and 1.08 times as fast as oneDNN; with AMX, oneDNN
multiplies many rows of bytes (`benchmarks/products.py`).

This file is long because it contains the kernel in C++.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

from exporter.targets import _amx, _inductor

# Rows, columns and depth of a block in registers; the last three are for rows in uint8.
AVX512, AVX2 = (14, 32, 1), (6, 16, 1)
AVX2_BYTES, VNNI, AMX = (6, 16, 4), (14, 32, 4), (32, 32, 64)
MOST_ROWS = 256  # of bytes in the example that this kernel multiplies by AMX; for 512, oneDNN is as fast
# Of bytes in a portable package. oneDNN uses VNNI or AMX where the package runs: on a Xeon with AMX and 2 threads, this
# kernel for AVX2 was 2.0, 1.3, 0.93 and 0.45 times as fast for 2, 8, 14 and 32 rows; with AVX2 alone, 2.7 times for 14.
PORTABLE_ROWS = 16
WASTE = 4  # a layer uses the kernel if the columns that fill its last block are at most a quarter of its own
CACHES = 2  # blocks of a weight in caches are this much larger than in inductor's kernels, because they are prefetched
# Once in a file, for all of its products. Accumulators start at zero even if C is added to, because GCC 12 spills those
# that start with loads.
DEFINITION = r"""
#ifndef EXPORTER_GEMM_@name@
#define EXPORTER_GEMM_@name@
namespace exporter_gemm_@name@ {
@arithmetic@
constexpr int BLOCK = @rows@, COLUMNS = @columns@, WIDTH = Vector::size(), VECTORS = COLUMNS / WIDTH;
constexpr int LINE = 64, AHEAD = 8 * LINE; // bytes

// The rows that a kernel computes for this many: there is one for 1 and for each even number.
inline int64_t padded(int64_t rows) { return rows < 2 ? rows : (rows + 1) / 2 * 2; }

inline int64_t padded_in_blocks(int64_t rows) { return rows / BLOCK * BLOCK + padded(rows % BLOCK); }

// Copies rows so that those of a block are side by side.
__attribute__((noinline)) static void pack(
    const Row* from, Row* to, int64_t rows, int64_t K, int64_t lda, float alpha) {
    for (int64_t first = 0; first < rows; first += BLOCK) {
        const int64_t here = std::min<int64_t>(rows - first, BLOCK), wide = padded(here);
        Row* block = to + first * K;
        for (int64_t k = 0; k < K; k += DEPTH) {
            for (int64_t row = 0; row < here; row++)
                copy(from + (first + row) * lda + k, block + k * wide + row * DEPTH, alpha);
            if (here < wide) std::memset(block + k * wide + here * DEPTH, 0, DEPTH * sizeof(Row));
        }
    }
}

// Multiplies a block of at most ROWS packed rows by COLUMNS columns.
template <int ROWS>
__attribute__((noinline)) static void multiply(
    const Row* packed, const Weight* B, Sum* C, int64_t rows, int64_t K, int64_t ldb, int64_t ldc, bool accum) {
    Vector sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sums[row][n] = Vector(Sum(0));
    for (int64_t k = 0; k < K; k += DEPTH) {
        const Weight* from = B + k * ldb;
#pragma GCC unroll 4
        for (int byte = 0; byte < COLUMNS * DEPTH * int(sizeof(Weight)); byte += LINE)
            __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD + byte);
        Vector weights[VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) weights[n] = load(from + n * WIDTH * DEPTH);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++) {
            const Vector value = broadcast(packed + k * ROWS + row * DEPTH);
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) sums[row][n] = multiply_add(value, weights[n], sums[row][n]);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
        if (row >= rows) break;
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) {
            Sum* to = C + row * ldc + n * WIDTH;
            (accum ? sums[row][n] + Vector::loadu(to) : sums[row][n]).store(to);
        }
    }
}

template <int ROWS, typename... Arguments>
inline void multiply_few(int64_t rows, const Row* packed, const Weight* B, Sum* C, Arguments... others) {
    if constexpr (ROWS > 1) {
        constexpr int FEWER = ROWS > 2 ? ROWS - 2 : 1;
        if (rows <= FEWER) return multiply_few<FEWER>(rows, packed, B, C, others...);
    }
    multiply<ROWS>(packed, B, C, rows, others...);
}

static void multiply_all(
    const Row* packed, const Weight* B, Sum* C, int64_t rows, int64_t K, int64_t ldb, int64_t ldc, bool accum) {
    for (int64_t first = 0; first < rows; first += BLOCK)
        multiply_few<BLOCK>(
            std::min<int64_t>(rows - first, BLOCK), packed + first * K, B, C + first * ldc, K, ldb, ldc, accum);
}
} // namespace exporter_gemm_@name@
#endif
"""
# The arithmetic of DEFINITION. Each step multiplies DEPTH values of a row by DEPTH values of a column.
FLOATS = r"""
using Row = float;
using Weight = @weight@;
using Sum = float;
using Vector = at::vec::Vectorized<float>;
constexpr int DEPTH = 1;

inline void copy(const float* from, float* to, float alpha) { *to = alpha * *from; }
inline Vector broadcast(const float* from) { return Vector(*from); }
inline Vector load(const float* from) { return Vector::loadu(from); }
inline Vector load(const at::Half* from) {
    return at::vec::convert<float>(at::vec::Vectorized<at::Half>::loadu(from, Vector::size()));
}
inline Vector load(const int8_t* from) { return at::vec::convert<float>(at::vec::convert_to_int32<int8_t>(from)); }
inline Vector multiply_add(Vector value, Vector weight, Vector sum) { return at::vec::fmadd(value, weight, sum); }
"""
INTEGERS = r"""
using Row = uint8_t;
using Weight = int8_t;
using Sum = int32_t;
using Vector = at::vec::Vectorized<int32_t>;
constexpr int DEPTH = 4;

inline void copy(const uint8_t* from, uint8_t* to, float) { std::memcpy(to, from, DEPTH); }
inline Vector broadcast(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, DEPTH);
    return Vector(four);
}
@instructions@
"""
WITH_VNNI = r"""
inline Vector load(const int8_t* from) { return _mm512_loadu_si512(from); }
inline Vector multiply_add(Vector value, Vector weight, Vector sum) { return _mm512_dpbusd_epi32(sum, value, weight); }
"""
# Two products are added in 16 bits, which 7 bits in the rows cannot overflow. Where a layer quantizes its own output,
# inductor clips it to 8 bits: a value beyond the calibrated range may then saturate a pair of products, which is still
# nearer to the exact pair than with the value clipped to 7 bits. GCC 12 moves accumulators between registers if it may
# order these instructions itself: with a fixed order, the kernel is 1.36 times as fast.
WITH_AVX2 = r"""
inline Vector load(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline Vector multiply_add(Vector value, Vector weight, Vector sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i total = sum, pairs;
    asm("vpmaddubsw %[weight], %[value], %[pairs]\n\t"
        "vpmaddwd %[ones], %[pairs], %[pairs]\n\t"
        "vpaddd %[pairs], %[total], %[total]"
        : [total] "+x"(total), [pairs] "=&x"(pairs)
        : [value] "x"(__m256i(value)), [weight] "x"(__m256i(weight)), [ones] "x"(ones));
    return total;
}
"""
# The same with tiles of AMX, two of rows by two of columns. Weights are packed as for VNNI, whose functions serve where
# the system does not let the process use tiles.
TILES = r"""
#ifndef EXPORTER_GEMM_amx
#define EXPORTER_GEMM_amx
namespace exporter_gemm_amx {
namespace vnni = exporter_gemm_vnni;
using namespace exporter_amx;
using vnni::Row;
constexpr int AHEAD = 32 * LINE; // bytes

inline int64_t padded_in_blocks(int64_t rows) {
    return permitted ? (rows + TILE - 1) / TILE * TILE : vnni::padded_in_blocks(rows);
}

// Copies rows into tiles; those of 16 rows are side by side.
__attribute__((noinline)) static void pack(
    const Row* from, Row* to, int64_t rows, int64_t K, int64_t lda, float alpha) {
    if (!permitted) return vnni::pack(from, to, rows, K, lda, alpha);
    for (int64_t first = 0; first < rows; first += TILE)
        for (int64_t k = 0; k < K; k += LINE)
            for (int64_t row = first; row < first + TILE; row++, to += LINE)
                _mm512_storeu_si512(to, row < rows ? _mm512_loadu_si512(from + row * lda + k) : _mm512_setzero_si512());
}

// Stores or adds the sums of a tile's first rows.
inline void store(const int32_t (&sums)[TILE][TILE], int32_t* C, int64_t rows, int64_t ldc, bool accum) {
    for (int64_t row = 0; row < std::min<int64_t>(rows, TILE); row++) {
        const __m512i sum = _mm512_load_si512(sums[row]);
        int32_t* to = C + row * ldc;
        _mm512_storeu_si512(to, accum ? _mm512_add_epi32(sum, _mm512_loadu_si512(to)) : sum);
    }
}

// Multiplies at most 16 rows or, if TWO, 32 by two tiles of columns. FIRST says that the weight is not in the cache.
template <bool TWO, bool FIRST>
__attribute__((noinline)) static void multiply(
    const Row* packed, const int8_t* B, int32_t* C, int64_t rows, int64_t K, int64_t ldb, int64_t ldc, bool accum) {
    complete(packed);
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) _tile_zero(2);
    if (TWO) _tile_zero(3);
    for (int64_t k = 0; k < K; k += LINE) {
        const int8_t* from = B + k * ldb;
        if (FIRST)
#pragma GCC unroll 32
            for (int line = 0; line < 2 * TILE; line++) __builtin_prefetch(from + AHEAD + line * LINE);
        _tile_loadd(4, packed + k * TILE, LINE);
        _tile_loadd(6, from, ldb * WORD);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, from + LINE, ldb * WORD);
        _tile_dpbusd(1, 4, 7);
        if (TWO) {
            _tile_loadd(5, packed + (K + k) * TILE, LINE);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    }
    if (TWO && rows >= 2 * TILE && !accum) {
        _tile_stored(0, C, ldc * WORD);
        _tile_stored(1, C + TILE, ldc * WORD);
        _tile_stored(2, C + TILE * ldc, ldc * WORD);
        _tile_stored(3, C + TILE * ldc + TILE, ldc * WORD);
        return;
    }
    alignas(LINE) int32_t sums[4][TILE][TILE];
    _tile_stored(0, sums[0], LINE);
    _tile_stored(1, sums[1], LINE);
    if (TWO) _tile_stored(2, sums[2], LINE);
    if (TWO) _tile_stored(3, sums[3], LINE);
    store(sums[0], C, rows, ldc, accum);
    store(sums[1], C + TILE, rows, ldc, accum);
    if (TWO) store(sums[2], C + TILE * ldc, rows - TILE, ldc, accum);
    if (TWO) store(sums[3], C + TILE * ldc + TILE, rows - TILE, ldc, accum);
}

static void multiply_all(
    const Row* packed, const int8_t* B, int32_t* C, int64_t rows, int64_t K, int64_t ldb, int64_t ldc, bool accum) {
    if (!permitted) return vnni::multiply_all(packed, B, C, rows, K, ldb, ldc, accum);
    for (int64_t first = 0; first < rows; first += 2 * TILE) {
        const int64_t left = rows - first;
        auto* one = left > TILE ? multiply<true, false> : multiply<false, false>;
        if (!first) one = left > TILE ? multiply<true, true> : multiply<false, true>;
        one(packed + first * K, B, C + first * ldc, left, K, ldb, ldc, accum);
    }
}
} // namespace exporter_gemm_amx
#endif
"""
# The names are the template's variables. Rows are packed when it reaches the first columns.
CALL = r"""{
    using namespace exporter_gemm_@name@;
    const int64_t first_k = k_block_start * Kr, rows = m_end - m_start, depth = k_end - k_start;
    if (!packed_rows) packed_rows.reset(new Row[Mc_blocks * Mr * std::min(Kt_blocks * Kr, K)]);
    Row* packed = packed_rows.get() + (k_start - first_k) * padded_in_blocks(rows);
    if (nci == n_block_start) pack(@A@, packed, rows, depth, @lda@, @alpha@);
    multiply_all(packed, @B@, @C@, rows, depth, @ldb@, @ldc@, @accum@);
}
"""
NEEDED = ("k_block_start", "Kr", "Kt_blocks", "k_start", "k_end", "m_start", "m_end", "Mc_blocks", "n_block_start")


def usable() -> bool:
    """Return whether this version of torch has the template that the kernel needs, and knows the caches of the CPU."""
    import torch._inductor.compile_fx  # noqa: F401 (first, because its modules import each other)
    from torch._inductor.codegen import cpp_gemm_template

    if not knows_caches():  # the template needs them
        return False
    texts = "".join(text for name, text in vars(cpp_gemm_template).items() if name.startswith("GEMM_TEMPLATE"))
    return all(f" {name} " in texts for name in NEEDED)


def knows_caches() -> bool:
    """Return whether torch knows the sizes of the CPU's caches."""
    import torch

    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return all(found.get(f"{level}_cache_size") for level in ("l1d", "l2"))


@contextlib.contextmanager
def compiled(narrow: float = 0) -> Iterator[None]:
    """Let inductor use this kernel within the context, if it is usable.

    The GEMM template uses it, and linear layers use the template, unless they are too narrow or inductor is asked to
    measure which of its own ways is the fastest. With AVX2, rows in uint8 have to take 7 bits; `narrow` is then the
    most of them, in the example, that it multiplies.
    """
    if not usable():
        yield
        return
    from torch._inductor import lowering
    from torch._inductor.codegen import common, cpp_micro_gemm

    configs: Any = cpp_micro_gemm.micro_gemm_configs
    blocks = _blocks(cpp_micro_gemm, narrow)
    replaced = {_operands(one) for one in blocks}
    kept = {kind: [one for one in found if _operands(one) not in replaced] for kind, found in configs.items()}
    kernels = [(configs, kind, others) for kind, others in kept.items() if others != configs[kind]]
    kernels.append((configs, _kind(cpp_micro_gemm), blocks))
    table: Any = lowering.lowerings
    layers = [(table, one, _templated(at, table[one], narrow)) for one, at in _linear_layers().items() if one in table]
    parse = functools.cache(common.KernelTemplate._template_from_string)  # inductor parses the texts for each layer
    parsed = mock.patch.object(common.KernelTemplate, "_template_from_string", staticmethod(parse))
    with contextlib.ExitStack() as changed:
        for entry in (*layers, *kernels):
            changed.enter_context(_inductor.with_entry(*entry))
        changed.enter_context(parsed)
        changed.enter_context(_larger_caches())
        yield


def _blocks(module: Any, narrow: float) -> list[Any]:
    """Return inductor's records of the kernel, one for each instruction set and dtype of the weight."""
    import torch
    from torch._inductor import cpu_vec_isa

    weights, rows = (torch.float32, torch.float16, torch.int8), torch.float32
    instructions = ((cpu_vec_isa.VecAVX512, AVX512), (cpu_vec_isa.VecAVX2, AVX2))
    kinds = [(isa, block, rows, weight, rows) for isa, block in instructions for weight in weights]
    types = torch.uint8, torch.int8, torch.int32
    if narrow:
        kinds.append((cpu_vec_isa.VecAVX2, AVX2_BYTES, *types))
    if vnni() is not None:
        kinds += [(vnni(), VNNI, *types), (cpu_vec_isa.VecAMX, AMX, *types)]
    return [
        one
        for isa, block, rows, weight, made in kinds
        for one in module.generate_gemm_config(isa, [block], rows, weight, made, made, _divides)
    ]


def _divides(config: Any, m: Any, n: Any, k: Any, alpha: Any, *_: Any, **__: Any) -> bool:
    depth = config.register_blocking.block_k
    return bool(k % depth == 0 and (depth == 1 or alpha == 1))  # bytes cannot be scaled


def vnni() -> Any:
    """Return inductor's instruction set for products of bytes, which some versions lack."""
    from torch._inductor import cpu_vec_isa

    return getattr(cpu_vec_isa, "VecAVX512VNNI", None)


def _has_vnni(found: Any) -> bool:
    return vnni() is not None and isinstance(found, vnni())


def _operands(config: Any) -> tuple[Any, ...]:
    return config.vec_isa_cls, config.input_dtype, config.input2_dtype, config.output_dtype


def _linear_layers() -> dict[Any, int]:
    """Return the operators for linear layers with packed weights, each with the place of the weight after the rows."""
    import torch

    found: dict[Any, int] = {}
    if torch.backends.mkldnn.is_available():
        layer, quantized = torch.ops.mkldnn._linear_pointwise, torch.ops.onednn.qlinear_pointwise
        found |= {layer.default: 0, layer.binary: 1}
        found |= {getattr(quantized, name): 2 for name in quantized.overloads()}
    if torch.backends.mkl.is_available():
        found[torch.ops.mkl._mkl_linear.default] = 1
    return found


def _kind(module: Any) -> type[Any]:
    """Return the class of the micro-kernel for inductor's template."""

    class PackedRows(module.CppMicroGemm):  # type: ignore[misc]
        def _filled(self, text: str, **values: object) -> str:
            rows, columns, depth = self.register_blocking
            weight = module.DTYPE_TO_CPP[self.input2_dtype]
            arithmetic, name = (FLOATS, weight.rpartition(":")[2]) if depth == 1 else (INTEGERS, "vnni")
            instructions = WITH_VNNI
            if tuple(self.register_blocking) == AVX2_BYTES:
                instructions, name = WITH_AVX2, "bytes"
            rows = VNNI[0] if self.in_tiles else rows  # of the functions for VNNI
            known = {"arithmetic": arithmetic, "instructions": instructions, "weight": weight, "name": name}
            known |= {"rows": str(rows), "columns": str(columns)}
            for name, value in (known | values).items():
                text = text.replace(f"@{name}@", str(value))
            return text

        @property
        def in_tiles(self) -> bool:
            return tuple(self.register_blocking) == AMX

        def get_b_layout(self) -> Any:
            return module.LayoutType.NORMAL if self.register_blocking.block_k == 1 else module.LayoutType.VNNI4

        def codegen_define(self, kernel: Any) -> str:
            return self._filled(DEFINITION) + (_amx.DEFINITION + TILES if self.in_tiles else "")

        def codegen_init(self, kernel: Any) -> str:
            packed = self._filled("std::unique_ptr<exporter_gemm_@name@::Row[]> packed_rows;")
            return f"exporter_amx::Tiles tiles(exporter_amx::TILE);\n{packed}" if self.in_tiles else packed

        def codegen_call(self, kernel: Any, A: Any, B: Any, C: Any, accum: bool, **_: Any) -> str:
            matrices = {"A": A, "B": B, "C": C}
            starts = {name: f"&({kernel.index(matrix, [0, 0])})" for name, matrix in matrices.items()}
            strides = {f"ld{name.lower()}": kernel.stride(matrix, 0) for name, matrix in matrices.items()}
            call = CALL.replace("@name@", "amx") if self.in_tiles else CALL
            return self._filled(call, alpha=float(self.alpha), accum=str(accum).lower(), **starts, **strides)

    return PackedRows


@contextlib.contextmanager
def _larger_caches() -> Iterator[None]:
    """Let the template choose larger blocks for its caches."""
    import torch

    found = dict(torch.cpu.get_capabilities())
    found["l1d_cache_size"] *= CACHES
    with mock.patch.object(torch.cpu, "get_capabilities", return_value=found):
        yield


def serves(rows: Any, narrow: float = 0) -> bool:
    """Return whether the kernel multiplies these rows in the code that inductor generates now.

    It must be usable, and needs AVX2 for float32 and for at most `narrow` rows in uint8, VNNI for others in uint8, and
    at least one row: the template divides by the number of blocks of rows.
    """
    import torch
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, pick_vec_isa
    from torch._inductor.virtualized import V

    if not usable() or not all(V.graph.sizevars.statically_known_geq(size, 1) for size in rows.get_size()[:-1]):
        return False
    found = pick_vec_isa()
    if rows.get_dtype() is torch.uint8:
        count = V.graph.sizevars.optimization_hint(math.prod(rows.get_size()[:-1]), fallback=1)
        few = not _amx.used() or count <= MOST_ROWS
        return (_has_vnni(found) and few) or (count <= narrow and isinstance(found, VecAVX2))
    return rows.get_dtype() is torch.float32 and isinstance(found, VecAVX512 | VecAVX2)


def _templated(weight: int, lower: Any, narrow: float) -> Any:
    """Return a lowering that uses the GEMM template where this kernel serves and wastes little.

    `weight` is its place after the rows; `serves` explains `narrow`.
    """
    from torch._inductor import config

    def lowered(rows: Any, *args: Any, **kwargs: Any) -> Any:
        settings: Any = config
        measured = settings.max_autotune or settings.max_autotune_gemm
        if measured or not serves(rows, narrow) or not _fits(args[weight], rows.get_dtype()):
            return lower(rows, *args, **kwargs)
        with settings.patch(max_autotune_gemm=True, max_autotune_gemm_backends="CPP"), rendered_once():
            return lower(rows, *args, **kwargs)

    return lowered


@contextlib.contextmanager
def rendered_once() -> Iterator[None]:
    """Keep inductor from rendering a GEMM template twice in a lowering that measures nothing.

    The first time serves measurements, and the names of the kernel's arguments.
    """
    from torch._inductor.codegen import cpp_gemm_template

    def declare(template: Any, kernel: Any, **_: Any) -> str:
        inputs = {f"input{n}": node for n, node in enumerate(template.input_nodes)}
        return str(kernel.def_kernel(inputs=inputs, outputs={"Y": template.output_node}))

    with mock.patch.object(cpp_gemm_template.CppGemmTemplate, "render", declare):
        yield


def _fits(weight: Any, rows: Any) -> bool:
    """Return whether a weight fills the kernel's blocks, but for a little waste; `rows` is the dtype of the rows."""
    import torch
    from torch._inductor.cpu_vec_isa import VecAVX512, pick_vec_isa

    sizes, found = [int(size) for size in weight.get_size()], pick_vec_isa()
    depth, columns = sizes if rows is torch.uint8 else reversed(sizes)
    if rows is torch.uint8:
        _, width, step = VNNI if _has_vnni(found) else AVX2_BYTES
    else:
        _, width, step = AVX512 if isinstance(found, VecAVX512) else AVX2
    return -columns % width * WASTE <= columns and depth % step == 0
