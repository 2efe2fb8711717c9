#pragma once

#include <exporter/artifact.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace exporter::app {

/// Parsed options. options.cpp defines which subcommand takes which of them.
struct Options {
  std::filesystem::path artifact;
  std::filesystem::path golden;  ///< default: golden.safetensors in the artifact's bundle
  bool has_default_golden = true;
  std::vector<std::filesystem::path> inputs;  ///< several: the steps of a stream
  std::filesystem::path outputs;
  OpenOptions open;
  std::optional<double> rtol;
  std::optional<double> atol;
  int threads = 0;  ///< inside one operator; 0: torch's default
  int warmup = 10;  ///< maximum seconds
  int windows = 5;
  int runs = 50;
  int callers = 1;               ///< threads that call concurrently
  int load = 0;                  ///< percent of the callers' highest throughput; 0: no pauses
  std::filesystem::path beside;  ///< another artifact that is called at the same time; may be empty
  int streams = 1;               ///< CUDA streams that the callers share
  int top = 20;                  ///< nodes to print; 0: all, in order
  std::filesystem::path trace;   ///< file to write a Chrome trace to; may be empty
  bool json = false;
  bool verbose = false;
};

/// A parsed command line.
struct Request {
  std::string command;  ///< info, verify, bench, run, profile or session; empty if `text` is set
  Options options;
  std::string text;  ///< requested help or version, to be printed instead of running a command
};

/// Parses the command line. Throws Error(usage), with the help command to run, if it is invalid.
Request parse(int argc, const char* const* argv);

/// Returns the golden of the artifact's bundle: beside the artifact or, if none is there, beside
/// the target of a link to it. Rejected artifacts are one folder further down.
std::filesystem::path golden_of(const std::filesystem::path& artifact);

/// Parses a whole number in [min, max]. Otherwise throws Error(usage) that names `what`.
int parse_count(const std::string& what, const std::string& text, int min, int max);

}  // namespace exporter::app
