#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace exporter::benchmarks {

using Tensors = std::vector<at::Tensor>;
using Call = std::function<void()>;

/// A call captured into a CUDA graph.
struct Captured {
  /// Launches the graph.
  Call replay;

  /// Adds the graph to the capture in progress on the current stream, or launches it if there is
  /// none. Returns the tensors that the graph writes.
  std::function<Tensors()> run;
};

/// Captures a call, which returns its outputs. Throws if this build has no CUDA.
Captured capture(const std::function<Tensors()>& call);

}  // namespace exporter::benchmarks
