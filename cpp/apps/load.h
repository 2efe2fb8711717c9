#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// The timings of several concurrent callers of one artifact.
struct Load {
  double seconds;               ///< from the first call to the end of the last
  std::vector<double> samples;  ///< milliseconds of every call, waiting included
};

/// `callers` threads call the artifact `runs` times each, without a pause. On a GPU they share
/// `streams` streams, and each waits for its own stream after each call. A few untimed
/// calls of each come first. Rethrows the error of a failed call.
Load run_load(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int callers,
              int streams, int runs);

}  // namespace exporter::app
