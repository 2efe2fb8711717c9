#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace exporter::app {

double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

Statistics summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto count = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return {samples.size(),
          quantile(samples, 0.5),
          quantile(samples, 0.9),
          quantile(samples, 0.99),
          samples.front(),
          samples.back(),
          mean,
          samples.size() > 1 ? std::sqrt(squares / (count - 1)) : 0.0};
}

}  // namespace exporter::app
