#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// The timings of several concurrent callers of one artifact.
struct Load {
  double seconds;               ///< from the first call to the end of the last
  std::vector<double> samples;  ///< time of each call in milliseconds, including waits
};

/// Calls the artifact `runs` times from each of `callers` threads, without pauses, after a few
/// untimed calls per thread. On a GPU the threads share `streams` streams, and each waits for its
/// stream after each call. Rethrows the error of a failed call.
Load run_load(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int callers,
              int streams, int runs);

}  // namespace exporter::app
