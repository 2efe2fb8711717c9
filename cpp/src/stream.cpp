#include <ATen/MemoryOverlap.h>
#include <exporter/error.h>
#include <exporter/stream.h>

#include <algorithm>
#include <utility>

#include "state.h"

namespace exporter {
namespace {

/// Returns the tensor, or a copy if it shares memory with the others: the caller may write to the
/// inputs and outputs.
at::Tensor apart(const at::Tensor& tensor, const std::vector<at::Tensor>& others) {
  const bool shares = std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) {
    return at::get_overlap_status(tensor, other) != at::MemOverlapStatus::No;
  });
  return shares ? tensor.clone() : tensor;
}

}  // namespace

Stream::Stream(const Artifact& artifact)
    : artifact_(&artifact), sizes_(std::make_unique<StateSizes>()) {
  reset();
}

Stream::Stream(Stream&& other) noexcept { *this = std::move(other); }
Stream& Stream::operator=(Stream&& other) noexcept {
  artifact_ = std::exchange(other.artifact_, nullptr);
  sizes_ = std::move(other.sizes_);
  state_ = std::move(other.state_);
  return *this;
}
Stream::~Stream() = default;

const Artifact& Stream::artifact() const {
  if (artifact_ != nullptr) return *artifact_;
  throw Error(ErrorKind::usage, "the stream was moved from: use the one it was moved to");
}

std::vector<at::Tensor> Stream::run(std::vector<at::Tensor> inputs) {
  const Contract& contract = artifact().contract();
  if (contract.keeps_state()) return artifact().run(std::move(inputs));
  const bool first = state_.empty();
  if (first) sizes_->forget();
  sizes_->require(contract, inputs);
  auto all = inputs;
  const auto state = first ? contract.initial_state(inputs) : state_;
  all.insert(all.end(), state.begin(), state.end());
  auto outputs = artifact().run(std::move(all));
  if (outputs.size() != contract.outputs.size()) {
    throw Error(ErrorKind::runtime, "the model returned " + std::to_string(outputs.size()) +
                                        " outputs, the contract has " +
                                        std::to_string(contract.outputs.size()));
  }
  const auto own = outputs.begin() + static_cast<std::ptrdiff_t>(contract.own_outputs());
  std::vector<at::Tensor> next(own, outputs.end());
  outputs.erase(own, outputs.end());
  for (at::Tensor& tensor : next) tensor = apart(apart(tensor, inputs), outputs);
  state_ = std::move(next);
  return outputs;
}

void Stream::reset() {
  state_.clear();
  artifact().reset();
}

}  // namespace exporter
