#pragma once

#include <cstddef>
#include <vector>

namespace exporter::app {

/// Of samples in milliseconds; in their unit, but for `count`.
struct Statistics {
  std::size_t count;
  double median, p90, p99, min, max, mean;
  double deviation;  ///< sample standard deviation (n - 1); 0 for one sample
};

/// The q-quantile, 0 <= q <= 1, interpolated linearly between neighbours (as numpy's default).
/// `sorted` is ascending and not empty.
double quantile(const std::vector<double>& sorted, double q);

/// `samples` is not empty.
Statistics summarize(std::vector<double> samples);

}  // namespace exporter::app
