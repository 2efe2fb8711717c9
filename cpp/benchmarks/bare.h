#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace exporter::benchmarks {

using Tensors = std::vector<at::Tensor>;
using Call = std::function<void()>;

/// A call, captured into a CUDA graph.
struct Captured {
  /// Launches the graph.
  Call replay;

  /// Where another capture is under way on the current stream, makes the graph a part of it, and
  /// launches it otherwise. Returns the tensors that the graph writes.
  std::function<Tensors()> run;
};

/// Captures a call that returns what it computes. Throws where this build has no CUDA.
Captured capture(const std::function<Tensors()>& call);

}  // namespace exporter::benchmarks
