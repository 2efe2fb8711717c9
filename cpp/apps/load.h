#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// The timings of several concurrent callers of one artifact.
struct Load {
  double seconds;               ///< from the first call to the end of the last
  std::vector<double> samples;  ///< time of each call in milliseconds, including waits
};

/// Calls the artifact `runs` times from each of `callers` threads, after a few untimed calls per
/// thread: without pauses, or if `calls_per_s` is positive, at even intervals, so that all threads
/// together make that many calls a second. A call is then timed from the moment when it was due,
/// even if its thread was still busy. On a GPU the threads share `streams` streams, and each waits
/// for its stream after each call. Rethrows the error of a failed call.
Load run_load(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int callers,
              int streams, int runs, double calls_per_s = 0);

}  // namespace exporter::app
