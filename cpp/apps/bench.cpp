#include <ATen/Parallel.h>
#include <exporter/error.h>
#include <exporter/golden.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "check.h"
#include "commands.h"
#include "load.h"
#include "measure.h"
#include "printable.h"
#include "statistics.h"

namespace exporter::app {
namespace {

constexpr int kWarmUpRuns = 10;                  // calls in one warm-up window
constexpr std::int64_t kMostCalls = 10'000'000;  // of each caller; each keeps its time
constexpr double kSettled = 0.05;  // relative change of the median below which it is stable

/// Costs before the artifact is warm. The other figures exclude them.
struct ColdStart {
  double load_s;
  double first_call_ms;
};

/// Runs windows of calls until the median changes by less than kSettled, for at most `seconds`.
/// Returns whether the median settled. TorchScript needs this: its first calls record profiles and
/// then compile.
bool warm_up(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int seconds) {
  double previous = 0;
  double spent = 0;
  for (int window = 0; spent < seconds * 1e3; ++window) {
    const auto samples = time_runs(artifact, inputs, kWarmUpRuns);
    spent += std::accumulate(samples.begin(), samples.end(), 0.0);
    const double median = summarize(samples).median;
    if (window > 0 && std::abs(median - previous) < kSettled * median) return true;
    previous = median;
  }
  return false;
}

void print_cold_start(const ColdStart& cold) {
  std::printf("  Cold start:         %9.3f s to load, %.3f ms the first call\n", cold.load_s,
              cold.first_call_ms);
}

void print_text(const Options& options, const Artifact& artifact, const GoldenCase& example,
                const ColdStart& cold, const Statistics& all, bool settled) {
  std::printf("%s: %s on %s, %s, %s\n", options.artifact.c_str(), to_string(artifact.info().kind),
              artifact.device().str().c_str(), counted(at::get_num_threads(), "thread").c_str(),
              printable(example.name).c_str());
  std::printf(
      "  Time (mean ± σ):    %9.3f ms ± %7.3f ms    [median: %.3f ms, p90: %.3f, p99: %.3f]\n",
      all.mean, all.deviation, all.median, all.p90, all.p99);
  std::printf("  Range (min … max):  %9.3f ms … %7.3f ms    %zu runs, %.0f MB peak\n", all.min,
              all.max, all.count, peak_rss_mb());
  print_cold_start(cold);
  if (!settled) {
    std::fprintf(stderr,
                 "warning: the median was not stable after %d s of warm-up; close other programs "
                 "or raise --warmup\n",
                 options.warmup);
  }
}

nlohmann::ordered_json to_json(const Options& options, const Artifact& artifact,
                               const GoldenCase& example, const ColdStart& cold,
                               const Statistics& all, bool settled,
                               const std::vector<std::vector<double>>& windows) {
  return {{"artifact", options.artifact.string()},
          {"device", artifact.device().str()},
          {"threads", at::get_num_threads()},
          {"case", example.name},
          {"load_s", cold.load_s},
          {"first_call_ms", cold.first_call_ms},
          {"settled", settled},
          {"runs", all.count},
          {"median_ms", all.median},
          {"p90_ms", all.p90},
          {"p99_ms", all.p99},
          {"min_ms", all.min},
          {"max_ms", all.max},
          {"mean_ms", all.mean},
          {"stddev_ms", all.deviation},
          {"peak_rss_mb", peak_rss_mb()},
          {"windows_ms", windows}};
}

/// Refuses several callers of an artifact that keeps its state: each would change the others'
/// state.
void require_callers(const Artifact& artifact, const Options& options) {
  if (options.callers == 1 || !artifact.contract().keeps_state()) return;
  throw Error(ErrorKind::usage,
              options.artifact.string() +
                  " keeps its state, so it serves one caller: give --callers 1, " +
                  "or export it with --state inputs");
}

/// An artifact that is warm, and how it became so.
struct Warm {
  Options options;  ///< of this artifact
  GoldenCase example;
  Artifact artifact;
  std::vector<at::Tensor> inputs;
  ColdStart cold;
  bool settled;

  static Warm make(const Options& options) {
    GoldenCase example = read_golden(options).cases.front();
    const auto start = std::chrono::steady_clock::now();
    Artifact artifact = Artifact::open(options.artifact, options.open);
    const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
    require_callers(artifact, options);
    auto inputs = place(artifact, example.inputs);
    const ColdStart cold{load.count(), time_runs(artifact, inputs, 1).front()};
    const bool settled = warm_up(artifact, inputs, options.warmup);
    return {options, std::move(example), std::move(artifact), std::move(inputs), cold, settled};
  }
};

void print_load(const Warm& warm, const Load& load, double highest) {
  const Options& options = warm.options;
  const Statistics all = summarize(load.samples);
  const auto& runners = options.open.runners;
  const double throughput = static_cast<double>(all.count) / load.seconds;
  if (options.json) {
    const nlohmann::ordered_json json = {{"artifact", options.artifact.string()},
                                         {"device", warm.artifact.device().str()},
                                         {"threads", at::get_num_threads()},
                                         {"callers", options.callers},
                                         {"streams", options.streams},
                                         {"runners", runners ? nlohmann::json(*runners) : nullptr},
                                         {"load_s", warm.cold.load_s},
                                         {"first_call_ms", warm.cold.first_call_ms},
                                         {"calls", all.count},
                                         {"calls_per_s", throughput},
                                         {"highest_calls_per_s", highest},
                                         {"median_ms", all.median},
                                         {"p90_ms", all.p90},
                                         {"p99_ms", all.p99},
                                         {"max_ms", all.max},
                                         {"peak_rss_mb", peak_rss_mb()},
                                         {"samples_ms", load.samples}};
    std::printf("%s\n", dumped(json).c_str());
    return;
  }
  std::printf("%s: %s on %s, %s with %s%s\n", options.artifact.c_str(),
              to_string(warm.artifact.info().kind), warm.artifact.device().str().c_str(),
              counted(options.callers, "caller").c_str(),
              counted(at::get_num_threads(), "thread").c_str(),
              options.callers == 1 ? "" : " each");
  std::printf("  Throughput:         %9.1f calls/s    %zu calls in %.2f s\n", throughput, all.count,
              load.seconds);
  if (options.load > 0) {
    std::printf("  Load:               %9d %%          of the %.1f calls/s without pauses\n",
                options.load, highest);
  }
  std::printf("  Latency under load: %9.3f ms median, p90: %.3f, p99: %.3f, max: %.3f\n",
              all.median, all.p90, all.p99, all.max);
  print_cold_start(warm.cold);
}

/// Times the callers of one artifact, or of two at the same time. With a load, the throughput
/// without pauses is measured first, under the same conditions.
int bench_load(const std::vector<Warm>& all) {
  const Options& options = all.front().options;
  const std::int64_t calls = std::int64_t{options.windows} * options.runs;
  if (calls > kMostCalls) {
    throw Error(ErrorKind::usage, "--windows times --runs is " + std::to_string(calls) +
                                      " calls of each caller: give at most " +
                                      std::to_string(kMostCalls));
  }
  const int runs = static_cast<int>(calls);
  std::vector<Work> works;
  for (const Warm& one : all) works.push_back({one.artifact, one.inputs});
  std::vector<Load> loads = run_load(works, options.callers, options.streams, runs);
  std::vector<double> highest;
  for (const Load& load : loads) {
    highest.push_back(static_cast<double>(load.samples.size()) / load.seconds);
  }
  if (options.load > 0) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i].calls_per_s = highest[i] * options.load / 100;
    }
    loads = run_load(works, options.callers, options.streams, runs);
  }
  for (std::size_t i = 0; i < all.size(); ++i) print_load(all[i], loads[i], highest[i]);
  return 0;
}

/// Returns the options for the artifact beside the first one. Throws Error if there is none, or no
/// golden.
Options beside(Options options) {
  options.artifact = options.beside;
  options.golden = golden_of(options.artifact);
  options.has_default_golden = true;
  options.open.sha256.clear();
  inspect(options.artifact);
  if (!std::filesystem::exists(options.golden)) {
    throw Error(ErrorKind::golden,
                options.artifact.string() + " has no golden beside it, " + options.golden.string() +
                    ": use its bundle, because --golden is the first artifact's");
  }
  return options;
}

}  // namespace

int bench(const Options& options) {
  std::vector<Options> each{options};
  if (!options.beside.empty()) each.push_back(beside(options));
  std::vector<Warm> all;
  for (const Options& one : each) all.push_back(Warm::make(one));
  if (options.callers > 1 || options.load > 0 || all.size() > 1) return bench_load(all);
  const Warm& warm = all.front();
  std::vector<std::vector<double>> windows;
  std::vector<double> samples;
  for (int i = 0; i < options.windows; ++i) {
    windows.push_back(time_runs(warm.artifact, warm.inputs, options.runs));
    samples.insert(samples.end(), windows.back().begin(), windows.back().end());
  }
  const Statistics summary = summarize(std::move(samples));
  if (options.json) {
    const auto json =
        to_json(options, warm.artifact, warm.example, warm.cold, summary, warm.settled, windows);
    std::printf("%s\n", dumped(json).c_str());
  } else {
    print_text(options, warm.artifact, warm.example, warm.cold, summary, warm.settled);
  }
  return 0;
}

}  // namespace exporter::app
