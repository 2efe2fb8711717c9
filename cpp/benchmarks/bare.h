#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace exporter::benchmarks {

using Tensors = std::vector<at::Tensor>;
using Call = std::function<void()>;

/// The replay of a CUDA graph of this call. Throws where this build has no CUDA.
Call capture(const Call& call);

}  // namespace exporter::benchmarks
