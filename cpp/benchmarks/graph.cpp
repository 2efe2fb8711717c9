#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "bare.h"

namespace exporter::benchmarks {
namespace {

struct Graph {
  at::cuda::CUDAGraph cuda_graph{/*keep_graph=*/true};
  Tensors outputs;

  explicit Graph(const std::function<Tensors()>& call) {
    constexpr int kWarmUpRuns = 4;
    const auto stream = c10::cuda::getStreamFromPool();
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream);
    for (int i = 0; i < kWarmUpRuns; ++i) call();
    stream.synchronize();
    cuda_graph.capture_begin();
    outputs = call();
    cuda_graph.capture_end();
    cuda_graph.instantiate();
  }

  Tensors run() {
    cudaStreamCaptureStatus status{};
    cudaGraph_t whole{};
    const cudaGraphNode_t* before{};
    std::size_t count = 0;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
#if CUDART_VERSION >= 13000
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &whole, &before,
                                            /*edgeData_out=*/nullptr, &count));
#else
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &whole, &before, &count));
#endif
    if (status == cudaStreamCaptureStatusNone) {
      cuda_graph.replay();
      return outputs;
    }
    cudaGraphNode_t node{};
    C10_CUDA_CHECK(
        cudaGraphAddChildGraphNode(&node, whole, before, count, cuda_graph.raw_cuda_graph()));
#if CUDART_VERSION >= 13000
    C10_CUDA_CHECK(cudaStreamUpdateCaptureDependencies(stream, &node, /*dependencyData=*/nullptr, 1,
                                                       cudaStreamSetCaptureDependencies));
#else
    C10_CUDA_CHECK(
        cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies));
#endif
    return outputs;
  }
};

}  // namespace

Captured capture(const std::function<Tensors()>& call) {
  const auto graph = std::make_shared<Graph>(call);
  return {[graph] { graph->cuda_graph.replay(); }, [graph] { return graph->run(); }};
}

}  // namespace exporter::benchmarks
