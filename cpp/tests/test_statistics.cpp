#include <cmath>

#include "statistics.h"
#include "support.h"

using exporter::app::summarize;

namespace {

TEST_CASE("summary") {
  const auto s = summarize({4, 1, 3, 2, 5});
  CHECK(s.count == 5u);
  CHECK(s.median == 3.0);
  CHECK(s.min == 1.0);
  CHECK(s.max == 5.0);
  CHECK(s.mean == 3.0);
  CHECK(std::abs(s.deviation - std::sqrt(2.5)) < 1e-12);
  CHECK(std::abs(s.p90 - 4.6) < 1e-12);
}

TEST_CASE("interpolates") { CHECK(summarize({1, 2}).median == 1.5); }

TEST_CASE("one sample") {
  const auto s = summarize({7});
  CHECK(s.p99 == 7.0);
  CHECK(s.deviation == 0.0);
}

}  // namespace
