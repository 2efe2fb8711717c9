#include <cmath>

#include "statistics.h"
#include "testing.h"

using exporter::app::summarize;

namespace {

void summary() {
  const auto s = summarize({4, 1, 3, 2, 5});
  EXPECT_EQUAL(s.count, 5u);
  EXPECT_EQUAL(s.median, 3.0);
  EXPECT_EQUAL(s.min, 1.0);
  EXPECT_EQUAL(s.max, 5.0);
  EXPECT_EQUAL(s.mean, 3.0);
  EXPECT(std::abs(s.deviation - std::sqrt(2.5)) < 1e-12);
  EXPECT(std::abs(s.p90 - 4.6) < 1e-12);
}

void interpolates() { EXPECT_EQUAL(summarize({1, 2}).median, 1.5); }

void one_sample() {
  const auto s = summarize({7});
  EXPECT_EQUAL(s.p99, 7.0);
  EXPECT_EQUAL(s.deviation, 0.0);
}

}  // namespace

int main() {
  return testing::run(
      {{"summary", summary}, {"interpolates", interpolates}, {"one sample", one_sample}});
}
