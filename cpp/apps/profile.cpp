#include <ATen/Parallel.h>
#include <exporter/error.h>
#include <exporter/golden.h>
#include <exporter/profile.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "check.h"
#include "commands.h"
#include "measure.h"
#include "printable.h"
#include "statistics.h"

namespace exporter::app {
namespace {

constexpr int kUntimedRuns = 3;
constexpr const char* kZeros = "zeros";  // the name of inputs that were made up

using Nodes = std::vector<NodeProfile>;

/// The inputs to profile with, and what to call them.
struct Example {
  std::string name;
  std::vector<at::Tensor> inputs;
};

Example read_example(const Options& options, const Contract& contract) {
  if (!options.inputs.empty()) {
    return {options.inputs.front().string(), read_inputs(options.inputs.front(), contract)};
  }
  if (options.has_default_golden && !std::filesystem::exists(options.golden)) {
    Sizes sizes;
    for (const Symbol& symbol : contract.symbols) {
      if (symbol.example() == 0)
        sizes[symbol.name] = symbol.multiple_of;  // a size of 0 shows nothing
    }
    return {kZeros, contract.example_inputs(sizes)};
  }
  const Golden golden = read_golden(options);
  return {golden.cases.front().name, golden.cases.front().inputs};
}

/// Makes the first calls. Inputs that were made up may not fit the model.
void try_out(const Artifact& artifact, const Example& example) {
  try {
    time_runs(artifact, example.inputs, kUntimedRuns);
  } catch (const Error& error) {
    if (example.name != kZeros) throw;
    throw Error(error.kind(), std::string(error.what()) +
                                  " (the inputs are zeros; give others with --inputs FILE)");
  }
}

double total_us(const Nodes& nodes) {
  double total = 0;
  for (const NodeProfile& node : nodes) total += node.depth == 0 ? node.duration_us : 0;
  return total;
}

/// Returns the call with the median total, as it was.
Nodes median_call(std::vector<Nodes> calls) {
  const auto middle = calls.begin() + static_cast<std::ptrdiff_t>(calls.size() / 2);
  std::nth_element(calls.begin(), middle, calls.end(), [](const Nodes& one, const Nodes& other) {
    return total_us(one) < total_us(other);
  });
  return std::move(*middle);
}

/// Returns the time of each node without the nodes inside it, in microseconds.
std::vector<double> own_times(const Nodes& nodes) {
  std::vector<double> own;
  std::vector<std::size_t> open;  // the node at each depth
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    own.push_back(nodes[i].duration_us);
    open.resize(static_cast<std::size_t>(nodes[i].depth));
    if (!open.empty()) own[open.back()] -= nodes[i].duration_us;
    open.push_back(i);
  }
  return own;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : " ") + part;
  return all;
}

/// Returns the text in at most `width` characters, with its end cut off.
std::string fitted(const std::string& text, std::size_t width) {
  const std::string safe = printable(text);
  return safe.size() <= width ? safe : safe.substr(0, width - 3) + "...";
}

/// Returns a number of bytes in at most 8 characters: "12.3 kB".
std::string size_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1e3;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 || value >= 99.95 ? "%.0f %s" : "%.1f %s",
                value, kUnits[unit]);
  return text.data();
}

void print_row(const NodeProfile& node, double own_us, double all_us) {
  const std::string op = std::string(static_cast<std::size_t>(2 * node.depth), ' ') + node.op;
  const bool is_both = !node.place.empty() && !node.module.empty();
  const std::string where = node.place + (is_both ? "  " : "") + node.module;
  std::printf("%10.1f us %5.1f %% %9s  %-30s  %-24s  %s\n", own_us, 100 * own_us / all_us,
              size_text(node.allocated).c_str(), fitted(op, 30).c_str(),
              fitted(joined(node.outputs), 24).c_str(), printable(where).c_str());
}

void print_text(const Options& options, const Artifact& artifact, const Example& example,
                const Nodes& nodes, double plain_ms) {
  const std::vector<double> own = own_times(nodes);
  const double all_us = total_us(nodes);
  std::int64_t live = 0;
  for (const NodeProfile& node : nodes) live = std::max(live, node.live);
  std::printf("%s: %s on %s, %s, %s\n", options.artifact.c_str(), to_string(artifact.info().kind),
              artifact.device().str().c_str(), counted(at::get_num_threads(), "thread").c_str(),
              printable(example.name).c_str());
  std::printf("  %.3f ms in %zu nodes, %.3f ms without profiling, medians of %d calls\n",
              all_us / 1e3, nodes.size(), plain_ms, options.runs);
  std::printf("  at most %s held between nodes, weights and inputs aside\n\n",
              size_text(live).c_str());
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.top > 0) {
    std::ranges::stable_sort(order, [&](auto one, auto other) { return own[one] > own[other]; });
  }
  const auto top = options.top == 0 ? order.size() : static_cast<std::size_t>(options.top);
  const std::size_t shown = std::min(order.size(), top);
  std::printf("%13s %7s %9s  %-30s  %-24s  %s\n", "time", "share", "memory", "operator", "output",
              "line and module");
  double rest = all_us;
  for (std::size_t i = 0; i < shown; ++i) {
    print_row(nodes[order[i]], own[order[i]], all_us);
    rest -= own[order[i]];
  }
  if (shown < order.size()) {
    std::printf("%10.1f us %5.1f %%            in %zu other nodes; --top 0 shows all\n", rest,
                100 * rest / all_us, order.size() - shown);
  }
}

nlohmann::ordered_json to_json(const Options& options, const Artifact& artifact,
                               const Example& example, const Nodes& nodes, double plain_ms) {
  const std::vector<double> own = own_times(nodes);
  auto rows = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeProfile& node = nodes[i];
    rows.push_back({{"op", node.op},
                    {"module", node.module},
                    {"place", node.place},
                    {"outputs", node.outputs},
                    {"depth", node.depth},
                    {"start_us", node.start_us},
                    {"duration_us", node.duration_us},
                    {"own_us", own[i]},
                    {"allocated_bytes", node.allocated},
                    {"live_bytes", node.live}});
  }
  return {{"artifact", options.artifact.string()},
          {"device", artifact.device().str()},
          {"threads", at::get_num_threads()},
          {"case", example.name},
          {"runs", options.runs},
          {"median_ms", plain_ms},
          {"profiled_ms", total_us(nodes) / 1e3},
          {"nodes", rows}};
}

/// Writes the nodes in Chrome's trace event format, which Perfetto and chrome://tracing read.
void write_trace(const std::filesystem::path& path, const Nodes& nodes) {
  auto events = nlohmann::ordered_json::array();
  for (const NodeProfile& node : nodes) {
    events.push_back({{"name", node.op},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", node.start_us},
                      {"dur", node.duration_us},
                      {"args",
                       {{"module", node.module},
                        {"place", node.place},
                        {"outputs", node.outputs},
                        {"allocated_bytes", node.allocated}}}});
    events.push_back({{"name", "memory"},
                      {"ph", "C"},
                      {"pid", 0},
                      {"ts", node.start_us + node.duration_us},
                      {"args", {{"bytes", node.live}}}});
  }
  std::ofstream file(path);
  file << dumped({{"traceEvents", events}, {"displayTimeUnit", "ms"}}) << '\n';
  file.close();
  if (!file) throw Error(ErrorKind::io, path.string() + " cannot be written");
}

}  // namespace

int profile(const Options& options) {
  OpenOptions open = options.open;
  open.cuda_graphs = 0;
  const ArtifactInfo info = inspect(options.artifact);
  if (info.kind != ArtifactKind::exported_program) {
    throw Error(ErrorKind::usage, options.artifact.string() + " is " + to_string(info.kind) +
                                      ", and only an exported program has nodes to profile: "
                                      "export the model with --targets export");
  }
  const Artifact artifact = Artifact::open(options.artifact, open);
  Example example = read_example(options, artifact.contract());
  example.inputs = place(artifact, std::move(example.inputs));
  try_out(artifact, example);
  const double plain_ms = summarize(time_runs(artifact, example.inputs, options.runs)).median;
  std::vector<Nodes> calls;
  for (int i = 0; i < options.runs; ++i) {
    artifact.reset();
    calls.push_back(artifact.profile(example.inputs));
  }
  const Nodes nodes = median_call(std::move(calls));
  if (!options.trace.empty()) write_trace(options.trace, nodes);
  if (options.json) {
    std::printf("%s\n", dumped(to_json(options, artifact, example, nodes, plain_ms)).c_str());
  } else {
    print_text(options, artifact, example, nodes, plain_ms);
  }
  return 0;
}

}  // namespace exporter::app
