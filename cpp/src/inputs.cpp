// Arranges named inputs for a contract and makes example inputs.

#include <ATen/ops/zeros.h>
#include <exporter/contract.h>
#include <exporter/error.h>

#include <algorithm>

#include "guard.h"

namespace exporter {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::contract, message); }

const TensorSpec& find(const std::vector<TensorSpec>& specs, std::string_view name,
                       const char* what) {
  const auto found = std::ranges::find(specs, name, &TensorSpec::name);
  if (found != specs.end()) return *found;
  std::string names;
  for (const TensorSpec& spec : specs) names += (names.empty() ? "" : ", ") + spec.name;
  refuse("there is no " + std::string(what) + " " + std::string(name) + ", only " + names);
}

/// Replaces missing state inputs by the initial state.
void fill_state(std::vector<at::Tensor>& inputs, const Contract& contract) {
  const std::size_t own = contract.own_inputs();
  if (std::ranges::all_of(inputs, &at::Tensor::defined)) return;
  const auto initial = contract.initial_state(std::span(inputs).first(own));
  for (std::size_t i = 0; i < initial.size(); ++i) {
    if (!inputs[own + i].defined()) inputs[own + i] = initial[i];
  }
}

/// Returns the size of every symbol, in the contract's order.
std::vector<std::int64_t> sizes_of(const Contract& contract, const Sizes& given) {
  std::vector<std::int64_t> sizes;
  for (const Symbol& symbol : contract.symbols) {
    const auto found = given.find(symbol.name);
    sizes.push_back(found == given.end() ? symbol.example() : found->second);
    if (!symbol.allows(sizes.back())) {
      refuse(symbol.name + " is " + std::to_string(sizes.back()) + ", the contract allows " +
             describe_range(symbol));
    }
  }
  for (const auto& [name, size] : given) {
    if (std::ranges::find(contract.symbols, name, &Symbol::name) == contract.symbols.end()) {
      refuse("the contract has no symbol " + name);
    }
  }
  return sizes;
}

std::vector<std::int64_t> shape_of(const TensorSpec& spec, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> shape;
  for (const Dimension& dimension : spec.shape) {
    std::int64_t size = 1;
    if (const auto* fixed = std::get_if<FixedSize>(&dimension)) size = fixed->size;
    if (const auto* follows = std::get_if<SymbolSize>(&dimension)) size = sizes[follows->symbol];
    if (const auto* of = std::get_if<Expression>(&dimension)) size = of->at(sizes);
    if (size < 0) refuse(spec.name + " has a dimension of " + std::to_string(size));
    shape.push_back(size);
  }
  return shape;
}

}  // namespace

std::int64_t Symbol::smallest() const {
  if (!choices.empty()) return std::ranges::min(choices);
  const std::int64_t least = std::max<std::int64_t>(min, 0);
  const std::int64_t rest = least % multiple_of;
  return rest == 0 ? least : least + (multiple_of - rest);
}

std::int64_t Symbol::example() const { return hint && allows(*hint) ? *hint : smallest(); }

const TensorSpec& Contract::input(std::string_view name) const {
  return find(inputs, name, "input");
}

const TensorSpec& Contract::output(std::string_view name) const {
  return find(outputs, name, "output");
}

std::vector<at::Tensor> Contract::arrange(NamedTensors given) const {
  for (const auto& [name, tensor] : given) input(name);
  std::vector<at::Tensor> arranged;
  for (const TensorSpec& spec : inputs) {
    const auto found = given.find(spec.name);
    if (found == given.end() && arranged.size() < own_inputs()) {
      refuse("input " + spec.name + " is missing");
    }
    arranged.push_back(found == given.end() ? at::Tensor() : std::move(found->second));
  }
  fill_state(arranged, *this);
  return arranged;
}

std::vector<at::Tensor> Contract::example_inputs(const Sizes& given) const {
  const auto sizes = sizes_of(*this, given);
  return guarded(ErrorKind::runtime, "example inputs cannot be created", [&] {
    std::vector<at::Tensor> made;
    for (std::size_t i = 0; i < own_inputs(); ++i) {
      made.push_back(at::zeros(shape_of(inputs[i], sizes), inputs[i].dtype));
    }
    if (made.size() < inputs.size()) {
      for (at::Tensor& tensor : initial_state(made)) made.push_back(std::move(tensor));
    }
    return made;
  });
}

}  // namespace exporter
