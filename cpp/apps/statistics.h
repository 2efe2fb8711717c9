#pragma once

#include <cstddef>
#include <vector>

namespace exporter::app {

/// A summary of samples in milliseconds. All fields except `count` are in milliseconds.
struct Statistics {
  std::size_t count;
  double median, p90, p99, min, max, mean;
  double deviation;  ///< sample standard deviation (n - 1); 0 for one sample
};

/// Returns the q-quantile, 0 <= q <= 1, interpolated linearly between neighbours (numpy's default
/// method). `sorted` must be ascending and not empty.
double quantile(const std::vector<double>& sorted, double q);

/// Summarizes `samples`, which must not be empty.
Statistics summarize(std::vector<double> samples);

}  // namespace exporter::app
