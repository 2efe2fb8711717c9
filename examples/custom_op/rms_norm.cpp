// Defines the operator example::rms_norm and its kernel for the CPU.
//
// For each row x of the input (its last dimension), with the sum over that row:
//   output = x / sqrt(sum(x²) / size(x) + eps) * weight
//
// It uses only the stable ABI of torch, so the library runs with every torch from 2.11 on, and the
// headers of any of them compile it (TORCH_TARGET_VERSION in the build files).

#include "rms_norm.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>

namespace example {
namespace {

/// Work for one thread, in elements: below this, starting another thread takes longer.
constexpr std::int64_t GRAIN = 32'768;

// GCC on x86-64 compiles the loops for several CPUs, and the loader chooses among them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EXAMPLE_CPUS __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define EXAMPLE_CPUS
#endif

template <class T>
EXAMPLE_CPUS void normalize(const T* x, const T* weight, T* output, std::int64_t width,
                            double eps) {
  Sum<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    const auto value = static_cast<Sum<T>>(x[i]);
    sum += value * value;
  }
  const auto scale = 1 / std::sqrt(sum / static_cast<Sum<T>>(width) + static_cast<Sum<T>>(eps));
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    output[i] = static_cast<T>(static_cast<Sum<T>>(x[i]) * scale * static_cast<Sum<T>>(weight[i]));
  }
}

Tensor rms_norm_cpu(const Tensor& input, const Tensor& weight, double eps) {
  check(input, weight);
  const auto x = torch::stable::contiguous(input);
  const auto scales = torch::stable::contiguous(weight);
  auto output = torch::stable::empty_like(x);
  with_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (x.numel() == 0) return;
    const auto width = x.size(-1);
    const auto* from = static_cast<const T*>(x.const_data_ptr());
    const auto* by = static_cast<const T*>(scales.const_data_ptr());
    auto* to = static_cast<T*>(output.mutable_data_ptr());
    const auto rows = std::max<std::int64_t>(GRAIN / width, 1);
    torch::stable::parallel_for(0, x.numel() / width, rows, [=](auto begin, auto end) {
      for (auto row = begin; row < end; ++row) {
        normalize(from + row * width, by, to + row * width, width, eps);
      }
    });
  });
  return output;
}

}  // namespace
}  // namespace example

STABLE_TORCH_LIBRARY(example, library) {
  library.def("rms_norm(Tensor input, Tensor weight, float eps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(example, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&example::rms_norm_cpu));
}
