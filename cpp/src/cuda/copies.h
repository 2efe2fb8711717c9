#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

namespace exporter {

/// Copies bytes, several tensors in one launch, on the device that is current when it is made.
/// Throws std::runtime_error where the driver does not take it.
class CopyKernel {
 public:
  CopyKernel();
  CopyKernel(const CopyKernel&) = delete;
  CopyKernel& operator=(const CopyKernel&) = delete;
  ~CopyKernel();

  CUfunction function() const { return function_; }

 private:
  CUmodule module_{};
  CUfunction function_{};
};

/// As the kernel reads it.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

/// Copies of a CUDA graph, all as one node (one for each 32), which later launches make between
/// other places.
class Copies {
 public:
  /// The kernel must outlive the graph.
  Copies(const CopyKernel& kernel, std::vector<Copy> copies);

  /// Makes them nodes of a graph, after others.
  void add(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after);

  const std::vector<cudaGraphNode_t>& nodes() const { return nodes_; }

  void move_to(std::size_t index, void* to) {
    changed_ |= copies_[index].to != to;
    copies_[index].to = to;
  }

  void move_from(std::size_t index, const void* from) {
    changed_ |= copies_[index].from != from;
    copies_[index].from = from;
  }

  /// Tells a graph, made of the one that they are nodes of, where they are now.
  void update(cudaGraphExec_t graph);

 private:
  static constexpr std::size_t kCopiesOfANode = 32;  // as in copies.cu

  /// The launch of one node.
  struct Launch {
    std::array<Copy, kCopiesOfANode> each{};
    std::array<void*, 1> pointers{&each};
    CUDA_KERNEL_NODE_PARAMS params{};

    Launch(const Copies& copies, std::size_t first);
    Launch(const Launch&) = delete;  // it points into itself
    Launch& operator=(const Launch&) = delete;
  };

  CUfunction function_;
  std::vector<Copy> copies_;
  std::vector<cudaGraphNode_t> nodes_;
  bool changed_ = false;
};

}  // namespace exporter
