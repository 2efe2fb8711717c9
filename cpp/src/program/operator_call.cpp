#include <ATen/core/dispatch/Dispatcher.h>
#include <exporter/version.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>

#include "instructions.h"

namespace exporter::program {
namespace {

using c10::IValue;

/// Namespaces of torch whose operators only compute.
const std::set<std::string_view> kComputing = {"aten",   "quantized", "_quantized", "onednn",
                                               "mkldnn", "mkl",       "sparse"};
/// The other namespaces that torch registers: communication, profiling and internals.
const std::set<std::string_view> kOther = {
    "c10d",      "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem",
    "profiler",  "static_runtime",   "mkldnn_prepacked",          "_test",    "inductor",
    "debugprims"};
/// Operators of torch that read files or give access to memory that is not a tensor's own.
const std::set<std::string_view> kDangerous = {"aten::from_file", "aten::set_data", "aten::_print",
                                               "aten::record_stream"};

class OperatorCall final : public Instruction {
 public:
  OperatorCall(c10::OperatorHandle handle, std::vector<Operand> operands,
               std::vector<Target> targets)
      : handle_(handle), operands_(std::move(operands)), targets_(std::move(targets)) {}

  void run(Frame& frame) const override {
    auto& stack = frame.stack;
    stack.clear();
    for (const Operand& operand : operands_) stack.push_back(operand.take(frame));
    handle_.callBoxed(stack);
    store(stack, targets_, frame);
  }

 private:
  c10::OperatorHandle handle_;
  std::vector<Operand> operands_;
  std::vector<Target> targets_;
};

/// Returns the operand that the node passes for a parameter, or nullptr.
const Argument* given(const Node& node, const c10::Argument& parameter) {
  const auto found = std::ranges::find(node.inputs, parameter.name(), &NamedArgument::name);
  return found == node.inputs.end() ? nullptr : &found->argument;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& parameter) {
    return parameter.type()->str().starts_with("Tensor");
  });
}

/// Returns the value of a parameter that the node leaves out.
Operand left_out(const c10::FunctionSchema& schema, const c10::Argument& parameter,
                 const DeviceChange& devices) {
  if (!parameter.default_value()) {
    throw std::runtime_error("it is called without " + parameter.name());
  }
  // A tensor that is made from numbers alone is on the CPU unless a device is given.
  if (devices.saved == at::kCPU && devices.changes() && parameter.name() == "device" &&
      !takes_tensors(schema)) {
    return Operand::constant(devices.actual);
  }
  return Operand::constant(*parameter.default_value());
}

void require_known(const Node& node, const c10::FunctionSchema& schema) {
  for (const NamedArgument& input : node.inputs) {
    const bool known = std::ranges::any_of(schema.arguments(), [&](const c10::Argument& parameter) {
      return parameter.name() == input.name;
    });
    if (!known) throw std::runtime_error("it has no parameter " + input.name);
  }
}

std::string unregistered(const c10::OperatorName& name) {
  if (name.name.starts_with("prims::")) {
    return "only Python has this operator: export the program without run_decompositions";
  }
  if (name.name.starts_with("aten::")) {
    return std::string("LibTorch ") + torch_version() +
           " does not have this operator: use the version of torch that exported the program";
  }
  return "it is not registered here: give its library with --ops-lib, or call "
         "exporter::load_operators";
}

}  // namespace

std::optional<c10::OperatorName> operator_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return std::nullopt;
  const std::string rest = target.substr(kPrefix.size());
  const auto first = rest.find('.'), last = rest.rfind('.');
  if (first == last) return std::nullopt;  // "higher_order.cond"
  const std::string overload = rest.substr(last + 1);
  return c10::OperatorName(rest.substr(0, first) + "::" + rest.substr(first + 1, last - first - 1),
                           overload == "default" ? "" : overload);
}

std::string forbidden(const c10::OperatorName& name) {
  const std::string_view name_space = std::string_view(name.name).substr(0, name.name.find(':'));
  if (kComputing.contains(name_space)) {
    return kDangerous.contains(name.name) ? "it does more than compute, so it is not allowed" : "";
  }
  if (kOther.contains(name_space)) return "it does more than compute, so it is not allowed";
  return "";  // of a library that the user loaded, or not registered at all
}

std::unique_ptr<const Instruction> operator_call(const Node& node, const c10::OperatorName& name,
                                                 Scope& scope) {
  if (const std::string reason = forbidden(name); !reason.empty()) throw std::runtime_error(reason);
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) {
    throw std::runtime_error(unregistered(name));
  }
  const c10::FunctionSchema& schema = handle->schema();
  require_known(node, schema);
  std::vector<Operand> operands;
  for (const c10::Argument& parameter : schema.arguments()) {
    const Argument* argument = given(node, parameter);
    operands.push_back(argument == nullptr
                           ? left_out(schema, parameter, scope.devices())
                           : scope.bind(*argument, parameter.real_type(), parameter.N()));
  }
  if (node.outputs.size() > schema.returns().size() && !schema.returns().empty()) {
    throw std::runtime_error("it returns fewer results than the program expects");
  }
  const bool is_view = name == c10::OperatorName("aten::view", "");
  const auto called = is_view && scope.context().copies_for_views
                          ? c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "")
                          : *handle;
  auto targets = schema.returns().empty() ? std::vector<Target>{} : scope.targets(node);
  return std::make_unique<OperatorCall>(called, std::move(operands), std::move(targets));
}

}  // namespace exporter::program
