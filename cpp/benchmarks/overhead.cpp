// Measures the overhead of a call of exporter::Artifact over torch's own call:
// exporter-overhead ARTIFACT [DEVICE].
//
// Both calls alternate in one process, on the first case of golden.safetensors beside the artifact.
// On a GPU, the bare call launches a CUDA graph of the loaded model, the artifact's graph contains
// that graph, and both calls wait for the device. Two separate captures of the model could not be
// compared: the positions of their buffers in GPU memory matter more than the overhead.

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
#include "device.h"
#include "graphs.h"

namespace fs = std::filesystem;
using exporter::Artifact;
using exporter::ArtifactKind;
using exporter::benchmarks::Call;
using exporter::benchmarks::Tensors;

namespace {

constexpr double kLimitOnCpu = 10;  // microseconds per call
constexpr double kLimitOnGpu = 5;
constexpr int kWarmUpRuns = 100;
constexpr int kMaxPairs = 20'000;
constexpr int kCaptures = 16;
constexpr std::chrono::milliseconds kBudget{20'000};

using Clock = std::chrono::steady_clock;

/// A timed call, and an untimed action before each call, which resets a kept state.
struct Timed {
  Call call;
  Call before = [] {};
};

/// Returns torch's own call of the same file on the CPU. The result owns the loaded model.
Timed bare_forward(const fs::path& path, const Tensors& inputs, bool keeps_state) {
  auto module = torch::jit::load(path.string());
  if (module.hasattr("training")) module.eval();
  Timed timed{[module, inputs]() mutable { module.forward({inputs.begin(), inputs.end()}); }};
  if (keeps_state) timed.before = [module]() mutable { module.run_method("reset"); };
  return timed;
}

Timed bare_run(const fs::path& path, const Tensors& inputs, bool keeps_state) {
  const auto loader =
      std::make_shared<torch::inductor::AOTIModelPackageLoader>(path.string(), "model");
  Timed timed{[loader, inputs] { loader->run(inputs); }};
  if (!keeps_state) return timed;
  std::vector<std::pair<at::Tensor, at::Tensor>> state;
  for (const auto& [name, constant] : loader->get_runner()->extract_constants_map(false)) {
    state.emplace_back(constant, constant.clone());
  }
  timed.before = [state] {
    for (const auto& [constant, initial] : state) constant.copy_(initial);
  };
  return timed;
}

double microseconds(const Timed& timed) {
  timed.before();
  const auto start = Clock::now();
  timed.call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// The median and its confidence interval of at least 95%, from order statistics. `values` must not
/// be empty.
struct Median {
  double low, middle, high;

  explicit Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto count = static_cast<double>(values.size());
    const auto at = [&](double rank) {
      return values[static_cast<std::size_t>(std::clamp(rank, 0.0, count - 1))];
    };
    const double reach = 1.96 * std::sqrt(count) / 2;
    low = at(count / 2 - reach - 1);
    middle = at(count / 2);
    high = at(std::ceil(count / 2 + reach));
  }
};

/// The time of the bare call and the time added by the other, in microseconds.
struct Difference {
  Median added;
  Median bare;
  std::size_t pairs;
};

/// Times both calls in pairs; the first call of a pair alternates.
Difference compare(const Timed& ours, const Timed& bare, Clock::duration budget) {
  for (int i = 0; i < kWarmUpRuns; ++i) {
    microseconds(ours);
    microseconds(bare);
  }
  std::vector<double> differences;
  std::vector<double> alone;
  const auto end = Clock::now() + budget;
  for (int i = 0; i < kMaxPairs && Clock::now() < end; ++i) {
    const double first = microseconds(i % 2 == 0 ? ours : bare);
    const double second = microseconds(i % 2 == 0 ? bare : ours);
    differences.push_back(i % 2 == 0 ? first - second : second - first);
    alone.push_back(i % 2 == 0 ? second : first);
  }
  return {Median(differences), Median(alone), differences.size()};
}

/// Prints the result. Returns whether the overhead may be within the limit.
bool within(double limit, const std::string& what, const Median& added, const Median& bare) {
  const bool over = added.low > limit;
  std::printf("%s  %s: %.2f µs (%.2f…%.2f) beyond %.1f µs, at most %g", over ? "OVER" : "ok  ",
              what.c_str(), added.middle, added.low, added.high, bare.middle, limit);
  return !over;
}

Tensors first_inputs(const fs::path& path, at::Device device) {
  Tensors inputs =
      exporter::Golden::read(path.parent_path() / "golden.safetensors").cases.front().inputs;
  for (at::Tensor& input : inputs) input = input.to(device).contiguous();
  return inputs;
}

bool compare_on_cpu(const fs::path& path) {
  const auto artifact = Artifact::open(path, {.device = "cpu"});
  const Tensors inputs = first_inputs(path, at::kCPU);
  const bool is_script = artifact.info().kind == ArtifactKind::torchscript;
  const c10::InferenceMode no_gradients;
  const bool keeps_state = artifact.contract().keeps_state();
  const auto bare = (is_script ? bare_forward : bare_run)(path, inputs, keeps_state);
  const Timed ours{[&] { artifact.run(inputs); }, [&] { artifact.reset(); }};
  const auto found = compare(ours, bare, kBudget);
  const bool kept = within(kLimitOnCpu, path.string() + " on cpu", found.added, found.bare);
  std::printf("; %zu pairs\n", found.pairs);
  return kept;
}

/// A captured model. A graph that contains it has the same kernels with the same buffers. It reads
/// the inputs of its capture, although the artifact copies the given inputs as usual.
class CapturedModel final : public exporter::Runner {
 public:
  explicit CapturedModel(exporter::benchmarks::Captured graph) : graph_(std::move(graph)) {}

  Tensors run(Tensors) override { return graph_.run(); }

 private:
  exporter::benchmarks::Captured graph_;
};

bool compare_on_gpu(const fs::path& path, const std::string& device) {
  const auto info = exporter::inspect(path);
  if (info.contract.keeps_state()) {
    throw std::runtime_error(path.string() + " keeps its state, so it has no CUDA graph");
  }
  const auto where =
      exporter::prepare_device(exporter::parse_device(device), info.contract.precision == "tf32");
  const Tensors inputs = first_inputs(path, where);
  const c10::InferenceMode no_gradients;
  const auto model = exporter::load_runner(path, info, where, /*serial=*/true, 1);
  const auto name = path.string() + " on " + where.str();
  std::vector<Artifact> artifacts;  // all are kept, so that each capture uses other memory
  std::vector<double> added, bare;
  for (int i = 0; i < kCaptures; ++i) {
    const auto graph = exporter::benchmarks::capture([&] { return model->run(inputs); });
    const Artifact& artifact = artifacts.emplace_back(exporter::artifact_of(
        path, info, where, exporter::capture_graphs(std::make_unique<CapturedModel>(graph), 1)));
    artifact.run(inputs);
    if (artifact.execution_mode() != "CUDA graph") {
      throw std::runtime_error(name + ": " + artifact.execution_mode());
    }
    const Timed ours{[&] {
      artifact.run(inputs);
      exporter::synchronize(where);
    }};
    const Timed alone{[&] {
      graph.replay();
      exporter::synchronize(where);
    }};
    const auto found = compare(ours, alone, kBudget / kCaptures);
    added.push_back(found.added.middle);
    bare.push_back(found.bare.middle);
  }
  const bool kept = within(kLimitOnGpu, name, Median(added), Median(bare));
  const auto [least, most] = std::minmax_element(added.begin(), added.end());
  std::printf("; %.2f…%.2f in %d captures\n", *least, *most, kCaptures);
  return kept;
}

bool compare_file(const fs::path& path, const std::string& device) {
  return device == "cpu" ? compare_on_cpu(path) : compare_on_gpu(path, device);
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
