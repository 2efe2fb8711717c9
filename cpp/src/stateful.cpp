#include "stateful.h"

#include <mutex>

#include "state.h"

namespace exporter {
namespace {

/// Copies the inputs or outputs of a call. The state may share memory with them: writes by the
/// caller must not change the state, and later calls must not change returned outputs.
std::vector<at::Tensor> clones(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.clone();
  return tensors;
}

class StatefulRunner final : public Runner {
 public:
  StatefulRunner(std::unique_ptr<Runner> inner, Contract contract, std::string mode)
      : inner_(std::move(inner)), contract_(std::move(contract)), mode_(std::move(mode)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    const std::lock_guard lock(mutex_);
    sizes_.require(contract_, inputs);
    const auto given = clones(inputs);
    auto outputs = clones(inner_->run(given));
    for (const std::size_t i : inner_->written_inputs()) inputs[i].copy_(given[i]);
    return outputs;
  }

  std::optional<std::vector<at::Tensor>> profile(std::vector<at::Tensor> inputs,
                                                 std::vector<NodeProfile>& nodes) override {
    const std::lock_guard lock(mutex_);
    sizes_.require(contract_, inputs);
    const auto given = clones(inputs);     // outlives the call, whose memory is counted without it
    return inner_->profile(given, nodes);  // its caller drops the outputs
  }

  std::vector<std::size_t> written_inputs() const override { return inner_->written_inputs(); }

  void reset() override {
    const std::lock_guard lock(mutex_);
    inner_->reset();
    sizes_.forget();
  }

  std::string execution_mode() const override { return mode_; }

 private:
  std::mutex mutex_;
  std::unique_ptr<Runner> inner_;
  Contract contract_;
  StateSizes sizes_;
  std::string mode_;
};

}  // namespace

std::unique_ptr<Runner> serialize_calls(std::unique_ptr<Runner> inner, Contract contract,
                                        std::string mode) {
  return std::make_unique<StatefulRunner>(std::move(inner), std::move(contract), std::move(mode));
}

}  // namespace exporter
