#include "measure.h"

#include <sys/resource.h>

#include <chrono>

namespace exporter::app {

std::vector<double> time_runs(const Artifact& artifact, const std::vector<at::Tensor>& inputs,
                              int runs) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  samples.reserve(static_cast<std::size_t>(runs));
  artifact.synchronize();
  for (int i = 0; i < runs; ++i) {
    artifact.reset();
    const auto start = Clock::now();
    const auto outputs = artifact.run(inputs);
    artifact.synchronize();
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
    samples.push_back(elapsed.count());
  }
  return samples;
}

std::vector<at::Tensor> place(const Artifact& artifact, std::vector<at::Tensor> inputs) {
  for (at::Tensor& input : inputs) {
    input = input.contiguous().to(input.options().device(artifact.device()), /*non_blocking=*/false,
                                  /*copy=*/true);
  }
  return inputs;
}

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;  // ru_maxrss is in KiB on Linux
}

}  // namespace exporter::app
