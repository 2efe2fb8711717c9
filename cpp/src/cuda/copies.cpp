#include "copies.h"

#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <string>

// Embeds copies.ptx as a zero-terminated string, which the driver compiles for the GPU.
asm(R"(
  .pushsection .rodata
  .hidden exporter_copies_ptx
  .global exporter_copies_ptx
exporter_copies_ptx:
  .incbin ")" EXPORTER_COPIES_PTX R"("
  .byte 0
  .popsection
)");
extern "C" const char exporter_copies_ptx[];

namespace exporter {
namespace {

constexpr unsigned kThreads = 256;      // per block
constexpr unsigned kMaxBlocks = 256;    // per copy
constexpr std::size_t kBytesEach = 16;  // copied by a thread at a time

/// Returns a function of the CUDA driver. Torch's libraries do not export them.
template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) throw std::runtime_error("the CUDA driver has no " + std::string(name));
  return reinterpret_cast<Function*>(found);
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": CUDA driver error " + std::to_string(result));
}

// Macros in cuda.h map each function to the version that fits its types, such as X to X_v2.
#define EXPORTER_NAME(name) EXPORTER_TEXT(name)
#define EXPORTER_TEXT(name) #name
#define EXPORTER_DRIVER(name) driver<decltype(name)>(EXPORTER_NAME(name))

}  // namespace

CopyKernel::CopyKernel() {
  check(EXPORTER_DRIVER(cuModuleLoadData)(&module_, exporter_copies_ptx), "cuModuleLoadData");
  check(EXPORTER_DRIVER(cuModuleGetFunction)(&function_, module_, "exporter_copies"),
        "cuModuleGetFunction");
}

CopyKernel::~CopyKernel() {
  try {
    static_cast<void>(EXPORTER_DRIVER(cuModuleUnload)(module_));
  } catch (const std::exception&) {  // no driver, so nothing was loaded
  }
}

Copies::Copies(const CopyKernel& kernel, std::vector<Copy> copies)
    : function_(kernel.function()), copies_(std::move(copies)) {}

void Copies::add(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after) {
  static auto* const add_node = EXPORTER_DRIVER(cuGraphAddKernelNode);
  for (std::size_t first = 0; first < copies_.size(); first += kCopiesOfANode) {
    const Launch launch(*this, first);
    CUgraphNode node{};
    check(add_node(&node, graph, after.data(), after.size(), &launch.params),
          "cuGraphAddKernelNode");
    nodes_.push_back(node);
  }
}

void Copies::update(cudaGraphExec_t graph) {
  static auto* const set_params = EXPORTER_DRIVER(cuGraphExecKernelNodeSetParams);
  if (!changed_) return;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Launch launch(*this, i * kCopiesOfANode);
    check(set_params(graph, nodes_[i], &launch.params), "cuGraphExecKernelNodeSetParams");
  }
  changed_ = false;
}

Copies::Launch::Launch(const Copies& copies, std::size_t first) {
  const std::size_t count = std::min(copies.copies_.size() - first, kCopiesOfANode);
  std::size_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    each[i] = copies.copies_[first + i];
    most = std::max(most, each[i].bytes);
  }
  const std::size_t blocks = most / (kThreads * kBytesEach) + 1;
  params.func = copies.function_;
  params.gridDimX = static_cast<unsigned>(std::min<std::size_t>(blocks, kMaxBlocks));
  params.gridDimY = static_cast<unsigned>(count);
  params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = kThreads;
  params.kernelParams = pointers.data();
}

}  // namespace exporter
