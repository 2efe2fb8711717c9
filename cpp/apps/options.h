#pragma once

#include <exporter/artifact.h>
#include <exporter/parity.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace exporter::app {

/// Parsed options. options.cpp defines which subcommand takes which of them.
struct Options {
  std::filesystem::path artifact;
  std::filesystem::path golden;  ///< golden.safetensors beside the artifact, unless given
  std::vector<std::filesystem::path> inputs;  ///< several: the steps of a stream
  std::filesystem::path outputs;
  OpenOptions open;
  std::optional<double> rtol;
  std::optional<double> atol;
  int threads = 0;  ///< inside one operator; 0: torch's default
  int warmup = 10;  ///< seconds, at most
  int windows = 5;
  int runs = 50;
  int callers = 1;  ///< threads that call concurrently
  int streams = 1;  ///< CUDA streams that the callers share
  bool json = false;
  bool verbose = false;
};

/// A parsed command line.
struct Request {
  std::string command;  ///< one of info, verify, bench, run and session; empty where `text` is not
  Options options;
  std::string text;  ///< the help or the versions that were asked for: print it and do nothing else
};

/// Reads the command line. Throws Error(usage), with the command whose help to see.
Request parse(int argc, const char* const* argv);

/// The golden's tolerance, with what the command line overrides.
Tolerance tolerance_of(const Options& options, Tolerance golden);

/// A whole number in [min, max]. Throws Error(usage) that names `what`.
int parse_count(const std::string& what, const std::string& text, int min, int max);

}  // namespace exporter::app
