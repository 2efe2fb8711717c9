// Compares calls through CUDA graphs with calls without: test_graphs ARTIFACT, with
// golden.safetensors beside it. Not run by ctest, because it needs a GPU; see tests/gpu.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <exporter/artifact.h>
#include <exporter/golden.h>

#include "support.h"

using exporter::Artifact;
using Tensors = std::vector<at::Tensor>;

namespace {

constexpr int kCalls = 5;  // per case

/// Returns inputs like those of a case, with other random numbers each time.
Tensors noise_like(const Tensors& inputs, at::Device device) {
  Tensors made;
  for (const at::Tensor& input : inputs) {
    const at::Tensor moved = input.to(device);
    made.push_back(moved.is_floating_point() ? at::randn_like(moved) : moved);
  }
  return made;
}

/// Compares all outputs after the last call, made on one stream or alternately on two.
void check_earlier_outputs(const std::filesystem::path& path, bool two_streams) {
  const auto plain = Artifact::open(path, {.device = "cuda", .cuda_graphs = 0});
  const auto graphs = Artifact::open(path, {.device = "cuda"});
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const auto first = gpu.getStream(graphs.device());
  const auto second = two_streams ? gpu.getStreamFromGlobalPool(graphs.device()) : first;
  for (const auto& example :
       exporter::Golden::read(path.parent_path() / "golden.safetensors").cases) {
    std::vector<Tensors> inputs, outputs;
    for (int i = 0; i < kCalls; ++i) inputs.push_back(noise_like(example.inputs, graphs.device()));
    graphs.synchronize();
    for (int i = 0; i < kCalls; ++i) {
      const c10::StreamGuard guard(i % 2 == 0 ? first : second);
      outputs.push_back(graphs.run(inputs[static_cast<std::size_t>(i)]));
    }
    CHECK(graphs.execution_mode() == "CUDA graph");
    graphs.synchronize();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensors expected = plain.run(inputs[i]);
      REQUIRE(outputs[i].size() == expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k) {
        CHECK(at::allclose(outputs[i][k], expected[k], 1e-4, 1e-5));
      }
    }
  }
}

TEST_CASE("keeps earlier outputs unchanged") { check_earlier_outputs(support::argument(0), false); }

TEST_CASE("keeps them unchanged on two streams") {
  check_earlier_outputs(support::argument(0), true);
}

TEST_CASE("captures in the warm-up") {
  const auto path = support::argument(0);
  const auto example =
      exporter::Golden::read(path.parent_path() / "golden.safetensors").cases.front();
  const auto artifact = Artifact::open(path, {.device = "cuda"});
  artifact.warm_up({example.sizes});
  CHECK(artifact.execution_mode() == "CUDA graph");
  const Tensors expected = artifact.run(example.inputs);
  Tensors room;
  for (const at::Tensor& output : expected) room.push_back(at::empty_like(output, at::kCPU));
  artifact.run_into(example.inputs, room);
  for (std::size_t i = 0; i < room.size(); ++i) CHECK(at::allclose(room[i], expected[i].cpu()));
}

}  // namespace
