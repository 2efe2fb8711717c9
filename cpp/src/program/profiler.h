#pragma once

#include <exporter/profile.h>

#include <chrono>
#include <memory>
#include <vector>

#include "routine.h"

namespace exporter::program {

class MemoryCount;

/// Records time and memory of each step of one call, made in the thread that made the profiler.
class Profiler final : public Observer {
 public:
  explicit Profiler(std::vector<NodeProfile>& nodes);
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void before(const Step& step, const Frame& frame) override;
  void after(const Step& step, const Frame& frame) override;

 private:
  struct Open {
    std::size_t node;    ///< position in the records
    std::int64_t bytes;  ///< held when it began
    std::int64_t peak;   ///< of the step around it, until then
  };
  struct Counting;

  std::vector<NodeProfile>& nodes_;
  std::vector<Open> open_;  ///< the steps that have begun, the innermost last
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Counting> counting_;
};

}  // namespace exporter::program
