#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "bare.h"

namespace exporter::benchmarks {

Call capture(const Call& call) {
  constexpr int kWarmUpRuns = 4;
  const auto graph = std::make_shared<at::cuda::CUDAGraph>();
  const auto stream = c10::cuda::getStreamFromPool();
  c10::cuda::device_synchronize();
  const c10::cuda::CUDAStreamGuard guard(stream);
  for (int i = 0; i < kWarmUpRuns; ++i) call();
  stream.synchronize();
  graph->capture_begin();
  call();
  graph->capture_end();
  return [graph, call] { graph->replay(); };
}

}  // namespace exporter::benchmarks
