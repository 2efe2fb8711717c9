#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "runner.h"

namespace exporter {
namespace {

/// Appends the tensors of a tensor, tuple or list, in order.
void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& item : value.toTupleRef().elements()) flatten(item, tensors);
  } else if (value.isTensorList()) {
    for (const at::Tensor& item : value.toTensorVector()) tensors.push_back(item);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) flatten(item, tensors);
  } else {
    TORCH_CHECK(false, "the model returned ", value.tagKind(), ", not tensors");
  }
}

/// A storage whose address is not used again, although its memory may be freed.
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

/// Copies outputs that the module keeps, such as constants, or whose memory it keeps, because the
/// caller may write to them. What only the outputs or the caller's inputs use is not the module's.
void copy_kept(std::vector<at::Tensor>& outputs, const std::vector<WeakStorage>& inputs) {
  std::map<const c10::TensorImpl*, std::size_t> handles;
  std::map<const c10::StorageImpl*, std::size_t> tensors;
  for (const at::Tensor& output : outputs) {
    if (!output.has_storage()) continue;
    if (++handles[output.unsafeGetTensorImpl()] > 1) continue;
    ++tensors[output.storage().unsafeGetStorageImpl()];
  }
  std::set<const c10::StorageImpl*> kept;
  for (const at::Tensor& output : outputs) {
    if (!output.has_storage()) continue;
    const c10::StorageImpl* storage = output.storage().unsafeGetStorageImpl();
    const bool is_given = std::ranges::any_of(
        inputs, [&](const WeakStorage& given) { return given._unsafe_get_target() == storage; });
    const bool is_held = output.use_count() > handles[output.unsafeGetTensorImpl()] ||
                         output.storage().use_count() > tensors[storage];
    if (is_held && !is_given) kept.insert(storage);
  }
  for (at::Tensor& output : outputs) {
    if (!output.has_storage()) continue;
    if (kept.contains(output.storage().unsafeGetStorageImpl())) output = output.clone();
  }
}

class TorchScriptRunner final : public Runner {
 public:
  TorchScriptRunner(const std::filesystem::path& path, at::Device device, bool keeps_state)
      : module_(torch::jit::load(path.string(), device, /*load_debug_files=*/false)) {
    // A frozen module has no attribute `training`.
    if (module_.hasattr("training")) module_.eval();
    if (keeps_state) reset_ = module_.find_method("reset");
    TORCH_CHECK(reset_ || !keeps_state, "it keeps its state, but has no method reset");
    TORCH_CHECK(!reset_ || reset_->num_inputs() == 1, "its method reset takes arguments");
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    std::vector<WeakStorage> given;
    for (const at::Tensor& input : inputs) {
      if (input.has_storage()) given.push_back(input.storage().getWeakStorageImpl());
    }
    std::vector<c10::IValue> stack(std::make_move_iterator(inputs.begin()),
                                   std::make_move_iterator(inputs.end()));
    std::vector<at::Tensor> outputs;
    flatten(module_.forward(std::move(stack)), outputs);
    copy_kept(outputs, given);
    return outputs;
  }

  void reset() override {
    if (reset_) (*reset_)({});
  }

 private:
  torch::jit::Module module_;
  std::optional<torch::jit::Method> reset_;
};

}  // namespace

std::unique_ptr<Runner> load_torchscript(const std::filesystem::path& path, at::Device device,
                                         bool keeps_state) {
  return std::make_unique<TorchScriptRunner>(path, device, keeps_state);
}

}  // namespace exporter
