#include "profiler.h"

#include <c10/core/Allocator.h>
#include <c10/util/StringUtil.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <exporter/contract.h>

#include <algorithm>

#include "../device.h"

namespace exporter::program {

/// Counts the memory that torch's allocators hand out in this thread.
class MemoryCount final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    held += size;
    peak = std::max(peak, held);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t held = 0, peak = 0;
};

struct Profiler::Counting {
  std::shared_ptr<MemoryCount> count = std::make_shared<MemoryCount>();
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, count};
};

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

std::string described(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "none";
    return dtype_name(tensor.scalar_type()) + c10::str(tensor.sizes());
  }
  if (value.isInt() || value.isBool() || value.isDouble()) return c10::str(value);
  return value.tagKind();
}

/// Waits for the GPU, if the step's result is there.
void wait_for(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cuda()) {
    exporter::synchronize(value.toTensor().device());
  }
}

}  // namespace

Profiler::Profiler(std::vector<NodeProfile>& nodes)
    : nodes_(nodes), start_(Clock::now()), counting_(std::make_unique<Counting>()) {}

Profiler::~Profiler() = default;

void Profiler::before(const Step& step, const Frame&) {
  NodeProfile node;
  node.op = step.target;
  node.module = step.module;
  node.place = step.place;
  node.depth = static_cast<int>(open_.size());
  MemoryCount& count = *counting_->count;
  open_.push_back({nodes_.size(), count.held, count.peak});
  nodes_.push_back(std::move(node));
  count.peak = count.held;
  nodes_.back().start_us = microseconds(Clock::now() - start_);
}

void Profiler::after(const Step& step, const Frame& frame) {
  for (const std::size_t slot : step.results) wait_for(frame.values[slot]);
  const double end = microseconds(Clock::now() - start_);
  const Open open = open_.back();
  open_.pop_back();
  NodeProfile& node = nodes_[open.node];
  node.duration_us = end - node.start_us;
  MemoryCount& count = *counting_->count;
  node.allocated = count.peak - open.bytes;
  node.live = count.held;
  count.peak = std::max(count.peak, open.peak);
  for (const std::size_t slot : step.results) node.outputs.push_back(described(frame.values[slot]));
}

}  // namespace exporter::program
