#include "binder.h"

#include <algorithm>
#include <stdexcept>

namespace exporter::program {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;
using Conversion = Operand::Conversion;
using Items = std::vector<Argument>;

void count_uses(const Argument& argument, std::map<std::string, std::size_t>& uses) {
  if (const auto* value = std::get_if<Reference>(&argument.is)) ++uses[value->name];
  if (const auto* items = std::get_if<Items>(&argument.is)) {
    for (const Argument& item : *items) count_uses(item, uses);
  }
}

/// The type of a list's elements as values have them.
TypePtr element_type(const TypePtr& type) {
  return type->kind() == TypeKind::SymIntType ? c10::IntType::get() : type;
}

Conversion conversion_for(const TypePtr& type) {
  if (type->kind() == TypeKind::TensorType) return Conversion::tensor;
  if (type->kind() == TypeKind::FloatType) return Conversion::real;
  return Conversion::none;
}

/// Converts a constant to a parameter's type, where torch's Python binding does.
IValue converted(IValue value, const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType:
      return value.isScalar() ? wrapped_number(value) : value;
    case TypeKind::FloatType:
      return value.isInt() ? IValue(static_cast<double>(value.toInt())) : value;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return value.isBool() ? IValue(static_cast<std::int64_t>(value.toBool())) : value;
    case TypeKind::DeviceObjType:
      return value.isString() ? IValue(at::Device(value.toStringRef())) : value;
    default:
      return value;
  }
}

}  // namespace

Scope::Scope(const Graph& graph, Context& context, const std::vector<std::string>& inputs)
    : context_(context) {
  for (const Node& node : graph.nodes) {
    for (const NamedArgument& input : node.inputs) count_uses(input.argument, uses_);
  }
  for (const Argument& output : graph.outputs) count_uses(output, uses_);
  for (const std::string& name : inputs) {
    slot_of_[name] = slots_++;
  }
}

void Scope::define(const std::string& name, IValue value) {
  constants_.insert_or_assign(name, std::move(value));
}

std::optional<std::size_t> Scope::add_slot(const std::string& name) {
  if (name.empty() || uses_.find(name) == uses_.end()) return std::nullopt;
  if (slot_of_.contains(name) || constants_.contains(name)) {
    throw std::runtime_error("its graph computes " + name + " twice");
  }
  return slot_of_[name] = slots_++;
}

std::vector<Target> Scope::targets(const Node& node) {
  std::vector<Target> targets;
  for (const Result& result : node.outputs) {
    Target target{{}, result.is_list};
    for (const std::string& name : result.names) target.slots.push_back(add_slot(name));
    targets.push_back(std::move(target));
  }
  return targets;
}

std::vector<std::size_t> Scope::slots_of(const Node& node) const {
  std::vector<std::size_t> found;
  for (const Result& result : node.outputs) {
    for (const std::string& name : result.names) {
      if (const auto slot = slot_of_.find(name); slot != slot_of_.end())
        found.push_back(slot->second);
    }
  }
  return found;
}

Operand Scope::lookup(const std::string& name, Conversion conversion) {
  const auto constant = constants_.find(name);
  if (constant != constants_.end()) return Operand::constant(constant->second);
  const auto slot = slot_of_.find(name);
  if (slot == slot_of_.end()) throw std::runtime_error("its graph has no value " + name);
  return Operand::slot(slot->second, --uses_.at(name) == 0, conversion);
}

Operand Scope::bind(const Argument& argument) { return bind(argument, c10::AnyType::get()); }

Operand Scope::bind(const Argument& argument, const TypePtr& declared, std::optional<int> count) {
  TypePtr type = declared;
  if (const auto optional = declared->cast<c10::OptionalType>()) {
    const auto* constant = std::get_if<IValue>(&argument.is);
    if (constant != nullptr && constant->isNone()) return Operand::constant({});
    type = optional->getElementType();
  }
  const auto list = type->cast<c10::ListType>();
  if (const auto* items = std::get_if<Items>(&argument.is)) {
    return bind_list(*items, list ? list->getElementType() : c10::AnyType::get());
  }
  if (list) return bind_list(Items(count.value_or(1), argument), list->getElementType());
  if (const auto* value = std::get_if<Reference>(&argument.is)) {
    return lookup(value->name, conversion_for(type));
  }
  if (const auto* constant = std::get_if<IValue>(&argument.is)) {
    IValue value = converted(*constant, type);
    if (value.isDevice()) value = devices().of(value.toDevice());
    return Operand::constant(std::move(value));
  }
  throw std::runtime_error("it passes a graph to an operator");
}

Operand Scope::bind_list(const Items& items, const TypePtr& element) {
  std::vector<Operand> operands;
  operands.reserve(items.size());
  for (const Argument& item : items) operands.push_back(bind(item, element));
  const bool is_fixed = std::ranges::all_of(operands, &Operand::is_constant);
  const Operand list = Operand::list(element_type(element), std::move(operands));
  if (!is_fixed) return list;
  Frame none;
  return Operand::constant(list.take(none));
}

std::vector<Operand> Scope::bind_items(const Argument& argument) {
  std::vector<Operand> operands;
  if (const auto* items = std::get_if<Items>(&argument.is)) {
    for (const Argument& item : *items) operands.push_back(bind(item));
  } else {
    operands.push_back(bind(argument));
  }
  return operands;
}

}  // namespace exporter::program
