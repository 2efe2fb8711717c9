// The kernel of example::rms_norm for CUDA: a block of threads for each row.

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <climits>

#include "rms_norm.h"

namespace example {
namespace {

constexpr int WARP = 32;
constexpr int THREADS = 256;

/// Returns the sum of all threads' values, in every thread of the block.
template <class S>
__device__ S sum_of_block(S value) {
  __shared__ S parts[THREADS / WARP];
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
  __syncthreads();
  S total = 0;
  for (const S part : parts) total += part;
  __syncthreads();  // the next row overwrites `parts`
  return total;
}

template <class T>
__global__ void normalize(const T* input, const T* weight, T* output, std::int64_t rows,
                          std::int64_t width, double eps) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = input + row * width;
    Sum<T> sum = 0;
    for (std::int64_t i = threadIdx.x; i < width; i += THREADS) {
      const auto value = static_cast<Sum<T>>(x[i]);
      sum += value * value;
    }
    const auto mean = sum_of_block(sum) / static_cast<Sum<T>>(width);
    const auto scale = 1 / sqrt(mean + static_cast<Sum<T>>(eps));
    for (std::int64_t i = threadIdx.x; i < width; i += THREADS) {
      output[row * width + i] =
          static_cast<T>(static_cast<Sum<T>>(x[i]) * scale * static_cast<Sum<T>>(weight[i]));
    }
  }
}

Tensor rms_norm_cuda(const Tensor& input, const Tensor& weight, double eps) {
  check(input, weight);
  const torch::stable::accelerator::DeviceGuard guard(input.get_device_index());
  const auto x = torch::stable::contiguous(input);
  const auto scales = torch::stable::contiguous(weight);
  auto output = torch::stable::empty_like(x);
  with_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (x.numel() == 0) return;
    const auto width = x.size(-1);
    const auto rows = x.numel() / width;
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows, INT_MAX));
    normalize<<<blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(x.const_data_ptr()), static_cast<const T*>(scales.const_data_ptr()),
        static_cast<T*>(output.mutable_data_ptr()), rows, width, eps);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return output;
}

}  // namespace
}  // namespace example

STABLE_TORCH_LIBRARY_IMPL(example, CUDA, library) {
  library.impl("rms_norm", TORCH_BOX(&example::rms_norm_cuda));
}
