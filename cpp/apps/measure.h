#pragma once

#include <exporter/artifact.h>

#include <vector>

namespace exporter::app {

/// Calls the artifact `runs` times and returns each call's wall time in milliseconds. The device is
/// synchronised before the clock is read. `inputs` should be on the artifact's device already. An
/// artifact that keeps its state is reset before each call, outside the clock.
std::vector<double> time_runs(const Artifact& artifact, const std::vector<at::Tensor>& inputs,
                              int runs);

/// Copies of `inputs`, contiguous and on the artifact's device, so that no transfer is timed and a
/// model that changes its inputs in place does not change these.
std::vector<at::Tensor> place(const Artifact& artifact, std::vector<at::Tensor> inputs);

/// This process's peak resident memory in MB (10^6 bytes).
double peak_rss_mb();

}  // namespace exporter::app
