#include "options.h"

#include <exporter/error.h>
#include <exporter/threads.h>
#include <getopt.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace exporter::app {
namespace {

enum Id {
  kGolden = 1,
  kJson,
  kDevice,
  kThreads,
  kRtol,
  kAtol,
  kWarmup,
  kWindows,
  kRuns,
  kInputs,
  kOutputs,
  kOpsLib,
  kVerbose,
  kCudaGraphs,
  kRunners,
  kCallers,
  kStreams,
  kSha256
};

struct Command {
  std::string name;
  std::vector<int> takes;
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"info", {kJson, kOpsLib}},
      {"verify",
       {kGolden, kJson, kDevice, kThreads, kOpsLib, kCudaGraphs, kRtol, kAtol, kVerbose, kSha256}},
      {"bench",
       {kGolden, kJson, kDevice, kThreads, kOpsLib, kCudaGraphs, kRunners, kWarmup, kWindows, kRuns,
        kCallers, kStreams, kSha256}},
      {"run", {kInputs, kOutputs, kDevice, kThreads, kOpsLib, kCudaGraphs, kSha256}},
      {"session", {kGolden, kDevice, kThreads, kOpsLib, kCudaGraphs, kSha256}},
  };
  return all;
}

constexpr option kOptions[] = {
    {"golden", required_argument, nullptr, kGolden},
    {"json", no_argument, nullptr, kJson},
    {"device", required_argument, nullptr, kDevice},
    {"threads", required_argument, nullptr, kThreads},
    {"rtol", required_argument, nullptr, kRtol},
    {"atol", required_argument, nullptr, kAtol},
    {"warmup", required_argument, nullptr, kWarmup},
    {"windows", required_argument, nullptr, kWindows},
    {"runs", required_argument, nullptr, kRuns},
    {"inputs", required_argument, nullptr, kInputs},
    {"outputs", required_argument, nullptr, kOutputs},
    {"ops-lib", required_argument, nullptr, kOpsLib},
    {"verbose", no_argument, nullptr, kVerbose},
    {"cuda-graphs", required_argument, nullptr, kCudaGraphs},
    {"runners", required_argument, nullptr, kRunners},
    {"callers", required_argument, nullptr, kCallers},
    {"streams", required_argument, nullptr, kStreams},
    {"sha256", required_argument, nullptr, kSha256},
};

/// The options that getopt may see: those of this subcommand, and --help.
std::vector<option> options_of(const std::string& name) {
  std::vector<option> taken;
  for (const Command& command : commands()) {
    if (command.name != name) continue;
    for (const option& one : kOptions) {
      const auto& takes = command.takes;
      if (std::find(takes.begin(), takes.end(), one.val) != takes.end()) taken.push_back(one);
    }
  }
  taken.push_back({"help", no_argument, nullptr, 'h'});
  taken.push_back({nullptr, 0, nullptr, 0});
  return taken;
}

double parse_tolerance(const std::string& what, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0) {
    throw Error(ErrorKind::usage, what + " " + text + " is not a number of 0 or more");
  }
  return value;
}

std::string parse_sha256(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_hash = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_hash && text.size() == 64) return text;
  throw Error(ErrorKind::usage, "--sha256 takes the 64 hexadecimal digits that sha256sum prints");
}

void apply(int id, const std::string& value, Options& options) {
  switch (id) {
    case kGolden:
      options.golden = value;
      break;
    case kJson:
      options.json = true;
      break;
    case kDevice:
      options.open.device = value;
      break;
    case kThreads:
      options.threads = parse_count("--threads", value, 1, kMaxThreads);
      break;
    case kRtol:
      options.rtol = parse_tolerance("--rtol", value);
      break;
    case kAtol:
      options.atol = parse_tolerance("--atol", value);
      break;
    case kWarmup:
      options.warmup = parse_count("--warmup", value, 1, 86'400);
      break;
    case kWindows:
      options.windows = parse_count("--windows", value, 1, 1'000'000);
      break;
    case kRuns:
      options.runs = parse_count("--runs", value, 1, 1'000'000);
      break;
    case kInputs:
      options.inputs.emplace_back(value);
      break;
    case kOutputs:
      options.outputs = value;
      break;
    case kOpsLib:
      options.open.operators.emplace_back(value);
      break;
    case kCudaGraphs:
      options.open.cuda_graphs = parse_count("--cuda-graphs", value, 0, kMaxGraphs);
      break;
    case kRunners:
      options.open.runners = parse_count("--runners", value, 1, kMaxRunners);
      break;
    case kCallers:
      options.callers = parse_count("--callers", value, 1, 1024);
      break;
    case kStreams:
      options.streams = parse_count("--streams", value, 1, 32);
      break;
    case kSha256:
      options.open.sha256 = parse_sha256(value);
      break;
    case kVerbose:
      options.verbose = true;
      break;
    default:
      options.help = true;
  }
}

void finish(const std::string& name, const std::vector<std::string>& operands, Options& options) {
  if (options.help) return;
  if (operands.size() != 1) {
    throw Error(ErrorKind::usage, name + " takes one ARTIFACT, " + std::to_string(operands.size()) +
                                      " given; see exporter-run " + name + " --help");
  }
  options.artifact = operands[0];
  if (options.golden.empty()) options.golden = options.artifact.parent_path() / "golden.pt";
  if (name == "run" && (options.inputs.empty() || options.outputs.empty())) {
    throw Error(ErrorKind::usage, "run needs --inputs FILE and --outputs FILE");
  }
}

}  // namespace

Options parse_options(int argc, char** argv) {
  const std::string name = argv[0];
  const auto table = options_of(name);
  Options options;
  opterr = 0;  // one line of our own instead of getopt's
  optind = 1;
  while (true) {
    const int at = optind;
    const int id = getopt_long(argc, argv, ":h", table.data(), nullptr);
    if (id == -1) break;
    if (id == '?' || id == ':') {
      throw Error(ErrorKind::usage, std::string(argv[at]) +
                                        (id == ':' ? " needs a value" : " is not an option that ") +
                                        (id == ':' ? "" : name + " takes") + "; see exporter-run " +
                                        name + " --help");
    }
    apply(id, optarg != nullptr ? optarg : "", options);
  }
  finish(name, {argv + optind, argv + argc}, options);
  return options;
}

Tolerance tolerance_of(const Options& options, Tolerance golden) {
  golden.rtol = options.rtol.value_or(golden.rtol);
  golden.atol = options.atol.value_or(golden.atol);
  return golden;
}

int parse_count(const std::string& what, const std::string& text, int min, int max) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < min || value > max) {
    throw Error(ErrorKind::usage, what + " " + text + " is not a whole number from " +
                                      std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace exporter::app
