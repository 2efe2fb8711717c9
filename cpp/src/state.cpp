#include "state.h"

#include <ATen/ops/empty.h>
#include <exporter/error.h>

#include "guard.h"

namespace exporter {
namespace {

/// Returns the symbol that a dimension depends on; none if it is fixed or unconstrained.
std::optional<std::size_t> symbol_of(const Dimension& dimension) {
  if (const auto* follows = std::get_if<SymbolSize>(&dimension)) return follows->symbol;
  if (const auto* expression = std::get_if<Expression>(&dimension)) return expression->symbol;
  return std::nullopt;
}

/// Returns the size of a dimension for this size of its symbol. It may be negative.
std::int64_t size_at(const Dimension& dimension, std::int64_t symbol) {
  const auto* expression = std::get_if<Expression>(&dimension);
  return expression ? expression->at(symbol) : symbol;
}

std::int64_t size_of(const Contract& contract, const State::Tensor& tensor, std::size_t index,
                     const KnownSizes& sizes) {
  const Dimension& dimension = tensor.spec.shape[index];
  if (const auto* fixed = std::get_if<FixedSize>(&dimension)) return fixed->size;
  const auto symbol = symbol_of(dimension);
  // An unconstrained dimension starts with its size in `initial`.
  if (!symbol) {
    const auto missing = static_cast<std::int64_t>(tensor.spec.shape.size()) - tensor.initial.dim();
    return tensor.initial.size(static_cast<std::int64_t>(index) - missing);
  }
  if (!sizes[*symbol]) {
    throw Error(ErrorKind::contract, "state." + tensor.spec.name +
                                         " cannot be created: the inputs do not determine " +
                                         contract.symbols[*symbol].name);
  }
  const std::int64_t size = size_at(dimension, *sizes[*symbol]);
  if (size >= 0) return size;
  throw Error(ErrorKind::contract, "state." + tensor.spec.name + " dim " + std::to_string(index) +
                                       " is " + std::to_string(size) + " at " +
                                       contract.symbols[*symbol].name + " " +
                                       std::to_string(*sizes[*symbol]));
}

}  // namespace

std::size_t Contract::own_inputs() const {
  return inputs.size() - (state && !keeps_state() ? state->tensors.size() : 0);
}

std::size_t Contract::own_outputs() const {
  return outputs.size() - (state && !keeps_state() ? state->tensors.size() : 0);
}

std::vector<at::Tensor> Contract::initial_state(std::span<const at::Tensor> given) const {
  std::vector<at::Tensor> made;
  if (!state) return made;
  const KnownSizes sizes = sizes_of(*this, given);
  for (const State::Tensor& tensor : state->tensors) {
    made.push_back(initial_tensor(*this, tensor, sizes));
  }
  return made;
}

at::Tensor initial_tensor(const Contract& contract, const State::Tensor& tensor,
                          const KnownSizes& sizes) {
  std::vector<std::int64_t> shape;
  for (std::size_t i = 0; i < tensor.spec.shape.size(); ++i) {
    shape.push_back(size_of(contract, tensor, i, sizes));
  }
  return guarded(ErrorKind::runtime, "state." + tensor.spec.name + " cannot be created", [&] {
    at::Tensor made = at::empty(shape, tensor.initial.options());
    made.copy_(tensor.initial);
    return made;
  });
}

void StateSizes::require(const Contract& contract, std::span<const at::Tensor> own_inputs) {
  bool follows = false;
  for (const State::Tensor& tensor : contract.state->tensors) {
    for (const Dimension& dimension : tensor.spec.shape)
      follows |= symbol_of(dimension).has_value();
  }
  if (!follows) return;
  KnownSizes sizes = sizes_of(contract, own_inputs);
  for (const State::Tensor& tensor : contract.state->tensors) {
    for (const Dimension& dimension : tensor.spec.shape) {
      const auto symbol = symbol_of(dimension);
      if (known_.empty() || !symbol || known_[*symbol] == sizes[*symbol]) continue;
      const auto before = known_[*symbol], now = sizes[*symbol];
      if (before && now && size_at(dimension, *before) == size_at(dimension, *now)) continue;
      const auto text = [&](const KnownSizes& all) {
        return all[*symbol] ? std::to_string(*all[*symbol]) : "unknown";
      };
      throw Error(ErrorKind::contract, contract.symbols[*symbol].name + " is " + text(sizes) +
                                           ", but state." + tensor.spec.name + " was made for " +
                                           text(known_) + ": call reset() before another size");
    }
  }
  if (known_.empty()) known_ = std::move(sizes);
}

}  // namespace exporter
