// What a call of exporter::Artifact costs beyond torch's own: exporter-overhead ARTIFACT [DEVICE].
// Both run on the first case of golden.pt beside the artifact, in turn, in this one process. On a
// GPU both replay a CUDA graph, and wait for it.

#include <c10/core/InferenceMode.h>
#include <exporter/artifact.h>
#include <exporter/error.h>
#include <exporter/golden.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "bare.h"

namespace fs = std::filesystem;
using exporter::Artifact;
using exporter::ArtifactKind;
using exporter::benchmarks::Call;
using exporter::benchmarks::Tensors;

namespace {

constexpr double kLimitOnCpu = 10;  // microseconds a call
constexpr double kLimitOnGpu = 5;
constexpr int kWarmUpRuns = 100;
constexpr int kMaxPairs = 20'000;
constexpr std::chrono::seconds kBudget{20};

using Clock = std::chrono::steady_clock;

/// torch's own call of the same file, with what it needs to stay alive.
Call bare_forward(const fs::path& path, const Tensors& inputs, at::Device device) {
  auto module = torch::jit::load(path.string(), device);
  if (module.hasattr("training")) module.eval();
  return [module, inputs]() mutable { module.forward({inputs.begin(), inputs.end()}); };
}

Call bare_run(const fs::path& path, const Tensors& inputs, at::Device device) {
  const auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(
      path.string(), "model", device.is_cuda(), 1, device.index());
  return [loader, inputs] { loader->run(inputs); };
}

double microseconds(const Call& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// The median, and the order statistics that hold it in 95% of cases. `values` is not empty.
struct Median {
  double low, middle, high;

  explicit Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto count = static_cast<double>(values.size());
    const auto at = [&](double rank) {
      return values[static_cast<std::size_t>(std::clamp(rank, 0.0, count - 1))];
    };
    const double reach = 1.96 * std::sqrt(count) / 2;
    low = at(count / 2 - reach);
    middle = at(count / 2);
    high = at(count / 2 + reach);
  }
};

/// Both calls in turn, each first in every other pair; prints what was found. Returns whether the
/// difference may be within the limit.
bool compare(const std::string& what, const Call& ours, const Call& bare, double limit) {
  for (int i = 0; i < kWarmUpRuns; ++i) {
    ours();
    bare();
  }
  std::vector<double> differences;
  std::vector<double> alone;
  const auto end = Clock::now() + kBudget;
  for (int i = 0; i < kMaxPairs && Clock::now() < end; ++i) {
    const double first = microseconds(i % 2 == 0 ? ours : bare);
    const double second = microseconds(i % 2 == 0 ? bare : ours);
    differences.push_back(i % 2 == 0 ? first - second : second - first);
    alone.push_back(i % 2 == 0 ? second : first);
  }
  const Median added(differences);
  const bool over = added.low > limit;
  std::printf("%s  %s: %.2f µs (%.2f…%.2f) beyond %.1f µs, at most %g; %zu pairs\n",
              over ? "OVER" : "ok  ", what.c_str(), added.middle, added.low, added.high,
              Median(alone).middle, limit, differences.size());
  return !over;
}

bool compare_file(const fs::path& path, const std::string& device) {
  const auto artifact = Artifact::open(path, {.device = device});
  const at::Device where = artifact.device();
  Tensors inputs = exporter::Golden::read(path.parent_path() / "golden.pt").cases.front().inputs;
  for (at::Tensor& input : inputs) input = input.to(where).contiguous();
  const bool is_script = artifact.info().kind == ArtifactKind::torchscript;
  const auto make = is_script ? bare_forward : bare_run;
  const c10::InferenceMode no_gradients;
  const auto bare = make(path, inputs, where);
  const auto name = path.string() + " on " + where.str();
  if (where.is_cpu()) {
    return compare(name, [&] { artifact.run(inputs); }, bare, kLimitOnCpu);
  }
  const auto replay = exporter::benchmarks::capture(bare);
  const auto waited = [&](const Call& call) {
    return [&artifact, call] {
      call();
      artifact.synchronize();
    };
  };
  artifact.run(inputs);
  if (artifact.note() != "CUDA graph") throw std::runtime_error(name + ": " + artifact.note());
  return compare(name, waited([&] { artifact.run(inputs); }), waited(replay), kLimitOnGpu);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: exporter-overhead ARTIFACT [DEVICE]\n", stderr);
    return 2;
  }
  try {
    return compare_file(argv[1], argc == 3 ? argv[2] : "cpu") ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exporter-overhead: %s\n", error.what());
    return 2;
  }
}
