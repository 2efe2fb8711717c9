#include <array>
#include <stdexcept>

#include "instructions.h"
#include "numbers.h"

namespace exporter::program {
namespace {

using c10::IValue;

/// A result that nothing uses.
class NoStep final : public Instruction {
 public:
  void run(Frame& /*frame*/) const override {}
};

class NumberStep final : public Instruction {
 public:
  NumberStep(Arithmetic function, std::vector<Operand> operands, std::size_t slot)
      : function_(function), operands_(std::move(operands)), slot_(slot) {}

  void run(Frame& frame) const override {
    std::array<IValue, 3> values;
    for (std::size_t i = 0; i < operands_.size(); ++i) values[i] = operands_[i].take(frame);
    frame.values[slot_] = function_(std::span(values).first(operands_.size()));
  }

 private:
  Arithmetic function_;
  std::vector<Operand> operands_;
  std::size_t slot_;
};

/// A number that a tensor has, by the operator that returns it. These are read directly because
/// graphs with dynamic sizes read many of them.
enum class Property { size, stride, elements, offset };

class PropertyStep final : public Instruction {
 public:
  PropertyStep(Property property, Operand tensor, std::int64_t dimension, std::size_t slot)
      : property_(property), tensor_(std::move(tensor)), dimension_(dimension), slot_(slot) {}

  void run(Frame& frame) const override {
    const IValue value = tensor_.take(frame);
    frame.values[slot_] = read(value.toTensor());
  }

 private:
  std::int64_t read(const at::Tensor& tensor) const {
    switch (property_) {
      case Property::size:
        return tensor.size(dimension_);
      case Property::stride:
        return tensor.stride(dimension_);
      case Property::elements:
        return tensor.numel();
      case Property::offset:
        return tensor.storage_offset();
    }
    return 0;
  }

  Property property_;
  Operand tensor_;
  std::int64_t dimension_;
  std::size_t slot_;
};

std::optional<Property> property_of(const std::string& target) {
  if (target == "torch.ops.aten.sym_size.int") return Property::size;
  if (target == "torch.ops.aten.sym_stride.int") return Property::stride;
  if (target == "torch.ops.aten.sym_numel.default") return Property::elements;
  if (target == "torch.ops.aten.sym_storage_offset.default") return Property::offset;
  return std::nullopt;
}

std::int64_t dimension_of(const Node& node, Property property) {
  if (property != Property::size && property != Property::stride) return 0;
  const auto* value =
      node.inputs.size() > 1 ? std::get_if<IValue>(&node.inputs[1].argument.is) : nullptr;
  if (value == nullptr || !value->isInt()) throw std::runtime_error("its dimension is no number");
  return value->toInt();
}

}  // namespace

std::unique_ptr<const Instruction> number_step(const Node& node, Scope& scope) {
  const auto property = property_of(node.target);
  const NumberFunction* function = find_number_function(node.target);
  if (!property && function == nullptr) return nullptr;
  const std::size_t operands = property ? 1 : function->operands;
  if (node.inputs.size() < operands) throw std::runtime_error("it lacks an operand");
  std::vector<Operand> bound;
  for (std::size_t i = 0; i < operands; ++i) bound.push_back(scope.bind(node.inputs[i].argument));
  const std::int64_t dimension = property ? dimension_of(node, *property) : 0;
  const auto targets = scope.targets(node);  // last, because it changes the scope
  const bool has_slot = targets.size() == 1 && targets.front().slots.size() == 1;
  if (!has_slot || !targets.front().slots.front()) return std::make_unique<NoStep>();
  const std::size_t slot = *targets.front().slots.front();
  if (!property) return std::make_unique<NumberStep>(function->function, std::move(bound), slot);
  return std::make_unique<PropertyStep>(*property, std::move(bound.front()), dimension, slot);
}

}  // namespace exporter::program
