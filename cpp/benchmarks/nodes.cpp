// Measures what a node costs beyond its operator: exporter-nodes EXPORTED TRACE COUNT, for files
// that add the number 1 to a tensor of one element COUNT times. Prints JSON with the medians.
//
// The program, the traced file and plain calls of the operator take turns in one process.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <exporter/artifact.h>
#include <exporter/error.h>
#include <exporter/threads.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

namespace {

constexpr int kRounds = 5'000;
constexpr int kWarmUpRounds = 200;

double microseconds(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int measure(const std::string& exported, const std::string& traced, int count) {
  exporter::set_threads(1);
  const auto program = exporter::Artifact::open(exported);
  const auto trace = exporter::Artifact::open(traced);
  const c10::InferenceMode no_gradients;
  const at::Tensor x = at::ones({1}), one = at::scalar_tensor(1.0f);
  one.unsafeGetTensorImpl()->set_wrapped_number(true);
  const std::array<std::function<void()>, 3> calls = {[&] { program.run({x}); },
                                                      [&] { trace.run({x}); },
                                                      [&] {
                                                        at::Tensor y = x;
                                                        for (int i = 0; i < count; ++i)
                                                          y = at::add(y, one);
                                                      }};
  std::array<std::vector<double>, 3> times;
  for (int round = -kWarmUpRounds; round < kRounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const double time = microseconds(calls[i]);
      if (round >= 0) times[i].push_back(time);
    }
  }
  const double operators = median(times[2]);
  std::printf("{\"operator_us\": %.4f, \"exported_us\": %.4f, \"trace_us\": %.4f}\n",
              operators / count, (median(times[0]) - operators) / count,
              (median(times[1]) - operators) / count);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 4) return measure(argv[1], argv[2], std::stoi(argv[3]));
    std::fprintf(stderr, "usage: exporter-nodes EXPORTED TRACE COUNT\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exporter-nodes: %s\n", error.what());
  }
  return 2;
}
