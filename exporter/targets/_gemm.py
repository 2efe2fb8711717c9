"""A micro-kernel for matrix products in float32 by constant weights on x86 CPUs, for inductor's GEMM template.

A product of a few rows takes at least the time to read its weight. Inductor calls oneDNN for it, which takes half as
long again (14 rows) or twice as long (1 row). Inductor's own micro-kernel reads the rows with large strides, so that
they displace each other in the cache, and loses accumulators to the stack.

This kernel keeps as many accumulators as there are registers, reads rows that are packed once for each block, and
prefetches the weight. It reads weights in float32, float16 or int8, and is as fast as oneDNN for many rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

AVX512, AVX2 = (14, 32, 1), (6, 16, 1)  # rows, columns and depth of a block in registers
CACHES = 2  # blocks of a weight in caches are this much larger than in inductor's kernels, because they are prefetched
PACK = r"""
inline void {{kernel_name}}_pack(const float* from, float* to, int64_t M, int64_t K, int64_t lda) {
    for (int64_t m = 0; m < M; m += {{block_m}}) {
        int64_t rows = std::min<int64_t>(M - m, {{block_m}});
        for (int64_t k = 0; k < K; k++)
            for (int64_t r = 0; r < rows; r++)
                to[m * K + k * rows + r] = from[(m + r) * lda + k]{% if alpha != 1 %} * {{alpha}}{% endif %};
    }
}
"""
# Accumulators start at zero even if C is added to: loading them from C makes GCC 12 spill them.
KERNEL = r"""
template <int64_t BLOCK_M, int64_t BLOCK_N, bool accum, bool prefetch=false>
inline void {{kernel_name}}_kernel(
    const {{input_t}}* {{restrict_keyword}} A,
    const {{input2_t}}* {{restrict_keyword}} B,
    {{output_t}}* {{restrict_keyword}} C,
    int64_t K,
    int64_t lda,
    int64_t ldb,
    int64_t ldc
) {
    using Vectorized = at::vec::Vectorized<float>;
    constexpr int VLEN = Vectorized::size();
    constexpr int COLS = BLOCK_N / VLEN;
    constexpr int LINE = 64, AHEAD = 8 * LINE; // bytes
    Vectorized c[BLOCK_M][COLS];
#pragma GCC unroll 16
    for (int m = 0; m < BLOCK_M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < COLS; n++) c[m][n] = Vectorized(0.0f);
    for (int64_t k = 0; k < K; k++) {
        const {{input2_t}}* row = B + k * ldb;
#pragma GCC unroll 4
        for (int byte = 0; byte < BLOCK_N * int(sizeof({{input2_t}})); byte += LINE)
            __builtin_prefetch(reinterpret_cast<const char*>(row) + AHEAD + byte);
        Vectorized b[COLS];
#pragma GCC unroll 4
        for (int n = 0; n < COLS; n++)
{%- if input2_dtype == torch.int8 %}
            b[n] = at::vec::convert<float>(at::vec::convert_to_int32<int8_t>(row + n * VLEN));
{%- elif input2_dtype == torch.float16 %}
            b[n] = at::vec::convert<float>(at::vec::Vectorized<{{input2_t}}>::loadu(row + n * VLEN, VLEN));
{%- else %}
            b[n] = Vectorized::loadu(row + n * VLEN);
{%- endif %}
#pragma GCC unroll 16
        for (int m = 0; m < BLOCK_M; m++) {
            Vectorized a(A[k * BLOCK_M + m]);
#pragma GCC unroll 4
            for (int n = 0; n < COLS; n++) c[m][n] = at::vec::fmadd(a, b[n], c[m][n]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < BLOCK_M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < COLS; n++) {
            float* to = C + m * ldc + n * VLEN;
            if constexpr (accum) c[m][n] = c[m][n] + Vectorized::loadu(to);
            c[m][n].store(to);
        }
}
"""
# The rows of a block are packed when the template reaches its first columns.
CALL = r"""{
    const int64_t first_k = k_block_start * Kr, rows = m_end - m_start;
    float* packed = nullptr;
    if (!packed_rows) packed_rows.reset(new float[Mc_blocks * Mr * (std::min(k_block_end * Kr, K) - first_k)]);
    packed = packed_rows.get() + (k_start - first_k) * rows;
    if (nci == n_block_start) @pack@(@rows@, packed, rows, k_end - k_start, @lda@);
    @product@
}
"""
NEEDED = ("k_block_start", "k_block_end", "Kr", "k_start", "k_end", "m_start", "m_end", "Mc_blocks", "n_block_start")


def usable() -> bool:
    """Return whether the template of this version of torch has what the kernel needs."""
    from torch._inductor.codegen import cpp_gemm_template, cpp_micro_gemm

    texts = "".join(text for name, text in vars(cpp_gemm_template).items() if name.startswith("GEMM_TEMPLATE"))
    entry = cpp_micro_gemm.CppMicroGemmFP32Vec.TEMPLATE_ENTRY
    return "A + m * lda" in entry and all(f" {name} " in texts for name in NEEDED)


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Let inductor use this kernel within the context, if it is usable.

    The GEMM template uses it for rows in float32, and linear layers use the template, unless inductor is asked to
    measure which of its own ways is the fastest.
    """
    import torch._inductor.compile_fx  # noqa: F401 - first, because its modules import each other
    from torch._inductor import lowering
    from torch._inductor.codegen import cpp_micro_gemm

    if not usable():
        yield
        return
    configs: Any = cpp_micro_gemm.micro_gemm_configs
    usual: Any = cpp_micro_gemm.CppMicroGemmFP32Vec
    blocks = _blocks(cpp_micro_gemm)
    replaced = {(one.vec_isa_cls, one.input_dtype, one.input2_dtype) for one in blocks}
    others = [o for o in configs[usual] if (o.vec_isa_cls, o.input_dtype, o.input2_dtype) not in replaced]
    table: Any = lowering.lowerings
    layers = {operator: _templated(table[operator]) for operator in _linear_layers() if operator in table}
    kernels = {usual: others, _kind(usual): blocks}
    with mock.patch.dict(configs, kernels), mock.patch.dict(table, layers), _larger_caches():
        yield


def _blocks(module: Any) -> list[Any]:
    """Return inductor's records of the kernel, one for each instruction set and dtype of the weight."""
    import torch
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512

    weights, rows = (torch.float32, torch.float16, torch.int8), torch.float32
    kinds = [(isa, block, weight) for isa, block in ((VecAVX512, AVX512), (VecAVX2, AVX2)) for weight in weights]
    return [
        one
        for isa, block, weight in kinds
        for one in module.generate_gemm_config(isa, [block], rows, weight, rows, rows)
    ]


def _linear_layers() -> list[Any]:
    """Return the operators for linear layers with packed weights."""
    import torch

    mkldnn, mkl = torch.ops.mkldnn, torch.ops.mkl
    found = (
        [mkldnn._linear_pointwise.default, mkldnn._linear_pointwise.binary]
        if torch.backends.mkldnn.is_available()
        else []
    )
    return [*found, mkl._mkl_linear.default] if torch.backends.mkl.is_available() else found


def _kind(usual: Any) -> type[Any]:
    """Return the class of the micro-kernel, derived from inductor's own for float32."""

    def initialize(self: Any, kernel: Any) -> str:
        return "std::unique_ptr<float[]> packed_rows;"

    def call(self: Any, kernel: Any, A: Any, B: Any, C: Any, accum: bool, *args: Any, **kwargs: Any) -> str:
        rows = f"&({kernel.index(A, [0, 0])})"
        called: str = usual.codegen_call(self, kernel, A, B, C, accum, *args, **kwargs)
        text = CALL.replace("@pack@", f"{self.name}_pack").replace("@product@", called.replace(rows, "packed"))
        return text.replace("@rows@", rows).replace("@lda@", str(kernel.stride(A, 0)))

    entry = usual.TEMPLATE_ENTRY.replace("A + m * lda", "A + m * K")
    parts = {"TEMPLATE_KERNEL": KERNEL, "TEMPLATE_ENTRY": PACK + entry, "codegen_init": initialize}
    return type("PackedRows", (usual,), parts | {"codegen_call": call})


@contextlib.contextmanager
def _larger_caches() -> Iterator[None]:
    """Let the template choose larger blocks for its caches."""
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        yield
        return
    found = dict(torch.cpu.get_capabilities())
    found["l1d_cache_size"] = CACHES * found.get("l1d_cache_size", 0)
    with mock.patch.object(torch.cpu, "get_capabilities", return_value=found):
        yield


def _templated(lower: Any) -> Any:
    """Return a lowering that uses the GEMM template for rows in float32."""
    import torch
    from torch._inductor import config

    def lowered(rows: Any, *args: Any, **kwargs: Any) -> Any:
        settings: Any = config
        if rows.get_dtype() is not torch.float32 or settings.max_autotune or settings.max_autotune_gemm:
            return lower(rows, *args, **kwargs)
        with settings.patch(max_autotune_gemm=True, max_autotune_gemm_backends="CPP"):
            return lower(rows, *args, **kwargs)

    return lowered
