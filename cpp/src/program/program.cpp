#include "program.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <stdexcept>

#include "instructions.h"

namespace exporter::program {
namespace {

using c10::IValue;

constexpr std::size_t kMostListed = 10;  // problems named in one message

void require_runnable(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < std::min(problems.size(), kMostListed); ++i) {
    text += (i > 0 ? "; " : "") + problems[i];
  }
  const std::string more = problems.size() > kMostListed
                               ? "; and " + std::to_string(problems.size() - kMostListed) + " more"
                               : "";
  throw std::runtime_error("its program cannot run here: " + text + more);
}

at::Tensor as_tensor(const IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isInt()) return at::scalar_tensor(value.toScalar(), at::kLong);
  if (value.isBool()) return at::scalar_tensor(value.toScalar(), at::kBool);
  if (value.isDouble()) return at::scalar_tensor(value.toScalar(), at::kDouble);
  throw std::runtime_error("the program returned a " + value.tagKind() + ", not a tensor");
}

bool is_weight(InputKind kind) {
  return kind == InputKind::parameter || kind == InputKind::buffer || kind == InputKind::constant;
}

}  // namespace

Program::Program(const SavedProgram& saved, const SavedTensors& tensors,
                 const DeviceChange& devices) {
  const auto constants = weights(saved, tensors, devices);
  // Strides of results differ between devices, and torch.export leaves out copies that the strides
  // of its own device make needless. A copy is equal to a view if nothing writes to either.
  const bool copies_for_views = devices.changes() && !writes(saved.graph);
  Context context{devices, copies_for_views, {}};
  std::vector<std::string> inputs;
  for (const InputSpec& input : saved.inputs) {
    if (input.kind == InputKind::user) inputs.push_back(input.name);
  }
  routine_ = prepare_graph(saved.graph, inputs, constants, context);
  require_runnable(context.problems);
  find_mutations(saved, constants);
}

std::map<std::string, IValue> Program::weights(const SavedProgram& saved,
                                               const SavedTensors& tensors,
                                               const DeviceChange& devices) {
  const auto written = written_weights(saved);
  std::map<std::string, IValue> constants;
  for (const InputSpec& input : saved.inputs) {
    if (!is_weight(input.kind)) continue;
    const auto found = tensors.find(input.target);
    if (found == tensors.end()) throw std::runtime_error("it has no tensor " + input.target);
    const auto& [saved_tensor, device] = found->second;
    at::Tensor tensor = saved_tensor.to(devices.of(device));
    if (written.contains(input.target)) {
      states_.push_back({tensor.clone(), tensor});
      tensor = states_.back().tensor;
    }
    storages_.insert(tensor.storage().unsafeGetStorageImpl());
    constants.emplace(input.name, std::move(tensor));
  }
  return constants;
}

void Program::find_mutations(const SavedProgram& saved,
                             const std::map<std::string, IValue>& weights) {
  const auto in_graph = written_inputs(saved.graph);
  std::map<std::string, std::size_t> users;  // position among the inputs of a call
  std::size_t position = 0;
  for (const InputSpec& input : saved.inputs) {
    if (input.kind != InputKind::user) continue;
    if (in_graph.contains(input.name)) written_.push_back(position);
    users[input.name] = position++;
  }
  for (std::size_t i = 0; i < saved.outputs.size(); ++i) {
    const OutputSpec& output = saved.outputs[i];
    if (output.kind == OutputKind::user) {
      const auto* constant = std::get_if<IValue>(&saved.graph.outputs[i].is);
      if (constant == nullptr || !constant->isNone()) user_outputs_.push_back(i);
    } else if (output.kind == OutputKind::input_mutation) {
      mutations_.push_back({i, {}, users.at(output.target)});
      written_.push_back(users.at(output.target));
    } else {
      const auto input = std::ranges::find(saved.inputs, output.target, &InputSpec::target);
      if (input == saved.inputs.end()) throw std::runtime_error("it has no " + output.target);
      mutations_.push_back({i, weights.at(input->name).toTensor()});
    }
  }
}

/// Returns an output that the caller may write to: a weight is copied.
at::Tensor Program::own(at::Tensor output) const {
  const bool is_shared =
      output.has_storage() && storages_.contains(output.storage().unsafeGetStorageImpl());
  return is_shared ? output.clone() : output;
}

std::vector<at::Tensor> Program::run(std::vector<at::Tensor> inputs, Observer* observer) const {
  std::vector<IValue> values(inputs.begin(), inputs.end());
  const auto results = routine_.run(std::move(values), observer);
  std::vector<at::Tensor> outputs;
  outputs.reserve(user_outputs_.size());
  for (const std::size_t i : user_outputs_) outputs.push_back(own(as_tensor(results[i])));
  for (const Mutation& mutation : mutations_) {
    const at::Tensor& target = mutation.weight.defined() ? mutation.weight : inputs[mutation.input];
    target.copy_(results[mutation.output].toTensor());
  }
  return outputs;
}

void Program::reset() {
  for (State& state : states_) state.tensor.copy_(state.initial);
}

}  // namespace exporter::program
