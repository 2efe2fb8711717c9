#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// Calls the artifact `runs` times and returns each call's wall time in milliseconds. The device is
/// synchronised before the clock is read. `inputs` should be on the artifact's device already. An
/// artifact that keeps its state is reset before each call, outside the clock.
std::vector<double> time_runs(const Artifact& artifact, const std::vector<at::Tensor>& inputs,
                              int runs);

/// Returns contiguous copies of `inputs` on the artifact's device. No transfer is timed then, and a
/// model that changes its inputs in place does not change the originals.
std::vector<at::Tensor> place(const Artifact& artifact, std::vector<at::Tensor> inputs);

/// Returns the peak resident memory of this process in MB (10^6 bytes).
double peak_rss_mb();

}  // namespace exporter::app
