#include "copies.h"

#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace exporter {
namespace {

/// copies.cu, with the version lowered to the first that has all of it; the driver compiles it for
/// its GPU.
constexpr const char* kProgram = R"(
.version 6.3
.target sm_75
.address_size 64

.visible .entry exporter_copies(
  .param .align 8 .b8 exporter_copies_param_0[768]
)
{
  .reg .pred   %p<6>;
  .reg .b16   %rs<2>;
  .reg .b32   %r<16>;
  .reg .b64   %rd<31>;

  mov.b64   %rd16, exporter_copies_param_0;
  mov.u32   %r1, %ctaid.y;
  mul.wide.u32   %rd18, %r1, 24;
  add.s64   %rd19, %rd16, %rd18;
  mov.u32   %r2, %ntid.x;
  mov.u32   %r3, %ctaid.x;
  mov.u32   %r4, %tid.x;
  mad.lo.s32   %r5, %r3, %r2, %r4;
  cvt.u64.u32   %rd1, %r5;
  mov.u32   %r6, %nctaid.x;
  mul.lo.s32   %r7, %r6, %r2;
  cvt.u64.u32   %rd2, %r7;
  ld.param.u64   %rd3, [%rd19+8];
  ld.param.u64   %rd4, [%rd19];
  or.b64    %rd20, %rd3, %rd4;
  and.b64    %rd21, %rd20, 15;
  setp.eq.s64   %p1, %rd21, 0;
  ld.param.u64   %rd5, [%rd19+16];
  shr.u64   %rd22, %rd5, 4;
  selp.b64   %rd6, %rd22, 0, %p1;
  setp.le.u64   %p2, %rd6, %rd1;
  @%p2 bra   $L__BB0_3;

  cvta.to.global.u64   %rd7, %rd4;
  cvta.to.global.u64   %rd8, %rd3;
  mov.u64   %rd29, %rd1;

$L__BB0_2:
  shl.b64   %rd23, %rd29, 4;
  add.s64   %rd24, %rd8, %rd23;
  add.s64   %rd25, %rd7, %rd23;
  ld.global.v4.u32   {%r8, %r9, %r10, %r11}, [%rd24];
  st.global.v4.u32   [%rd25], {%r8, %r9, %r10, %r11};
  add.s64   %rd29, %rd29, %rd2;
  setp.lt.u64   %p3, %rd29, %rd6;
  @%p3 bra   $L__BB0_2;

$L__BB0_3:
  shl.b64   %rd26, %rd6, 4;
  add.s64   %rd30, %rd26, %rd1;
  setp.ge.u64   %p4, %rd30, %rd5;
  @%p4 bra   $L__BB0_6;

  cvta.to.global.u64   %rd12, %rd3;
  cvta.to.global.u64   %rd13, %rd4;

$L__BB0_5:
  .pragma "nounroll";
  add.s64   %rd27, %rd12, %rd30;
  ld.global.u8   %rs1, [%rd27];
  add.s64   %rd28, %rd13, %rd30;
  st.global.u8   [%rd28], %rs1;
  add.s64   %rd30, %rd30, %rd2;
  setp.lt.u64   %p5, %rd30, %rd5;
  @%p5 bra   $L__BB0_5;

$L__BB0_6:
  ret;

}
)";

constexpr unsigned kThreads = 256;      // of a block
constexpr unsigned kMaxBlocks = 256;    // for one copy
constexpr std::size_t kBytesEach = 16;  // that a thread copies at a time

/// The driver's functions, which no library of torch's hands on.
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

// Macros of cuda.h name the version of a function that its types are of.
#define EXPORTER_NAME(name) EXPORTER_TEXT(name)
#define EXPORTER_TEXT(name) #name
#define EXPORTER_DRIVER(name) driver<decltype(name)>(EXPORTER_NAME(name))

}  // namespace

CopyKernel::CopyKernel() {
  check(EXPORTER_DRIVER(cuModuleLoadData)(&module_, kProgram), "cuModuleLoadData");
  check(EXPORTER_DRIVER(cuModuleGetFunction)(&function_, module_, "exporter_copies"),
        "cuModuleGetFunction");
}

CopyKernel::~CopyKernel() {
  try {
    static_cast<void>(EXPORTER_DRIVER(cuModuleUnload)(module_));
  } catch (const std::exception&) {  // nothing was loaded then
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
