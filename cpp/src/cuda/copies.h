#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

namespace exporter {

/// The kernel that copies several tensors in one launch, on the device that is current at
/// construction. Throws std::runtime_error if the driver cannot load it.
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

/// One copy, with the layout that the kernel reads.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

/// Copies in a CUDA graph, in one node per 32 copies. Their addresses can change between launches.
class Copies {
 public:
  /// The kernel must outlive the graph.
  Copies(const CopyKernel& kernel, std::vector<Copy> copies);

  /// Adds the copies to a graph as nodes that run after `after`.
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

  /// Passes changed addresses to an instance of the graph.
  void update(cudaGraphExec_t graph);

 private:
  static constexpr std::size_t kCopiesOfANode = 32;  // as in copies.cu

  /// The launch of one node.
  struct Launch {
    std::array<Copy, kCopiesOfANode> each{};
    std::array<void*, 1> pointers{&each};
    CUDA_KERNEL_NODE_PARAMS params{};

    Launch(const Copies& copies, std::size_t first);
    Launch(const Launch&) = delete;  // contains pointers to its own members
    Launch& operator=(const Launch&) = delete;
  };

  CUfunction function_;
  std::vector<Copy> copies_;
  std::vector<cudaGraphNode_t> nodes_;
  bool changed_ = false;
};

}  // namespace exporter
