#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// The timings of several concurrent callers of one artifact.
struct Load {
  double seconds;               ///< from the first call to the end of the last
  std::vector<double> samples;  ///< time of each call in milliseconds, including waits
};

/// What callers call, and how. The artifact and the inputs must outlive the calls.
struct Work {
  const Artifact& artifact;
  const std::vector<at::Tensor>& inputs;
  double calls_per_s = 0;  ///< of all callers together, at even intervals; 0: without pauses
};

/// Calls each artifact `runs` times from each of `callers` threads of its own, after a few untimed
/// calls per thread. With several artifacts, threads go on until all have made that many calls. A
/// call at even intervals is timed from the moment when it was due, even if its thread was still
/// busy. On a GPU the threads of an artifact share `streams` streams, and each waits for its stream
/// after each call. Rethrows the error of a failed call.
std::vector<Load> run_load(const std::vector<Work>& works, int callers, int streams, int runs);

}  // namespace exporter::app
