#include "state.h"

#include <ATen/ops/empty.h>
#include <exporter/error.h>

#include "guard.h"

namespace exporter {
namespace {

/// Returns the symbols that a dimension depends on; none if it is fixed or unconstrained.
std::vector<Expression::Term> symbols_of(const Dimension& dimension) {
  if (const auto* follows = std::get_if<SymbolSize>(&dimension)) return {{follows->symbol, 1}};
  if (const auto* expression = std::get_if<Expression>(&dimension)) return terms_of(*expression);
  return {};
}

/// Returns the size of a dimension that depends on symbols, if they are known. It may be negative.
std::optional<std::int64_t> size_at(const Dimension& dimension, const KnownSizes& sizes) {
  for (const auto& term : symbols_of(dimension)) {
    if (!sizes[term.symbol]) return std::nullopt;
  }
  const auto* expression = std::get_if<Expression>(&dimension);
  return expression ? value_at(*expression, sizes) : *sizes[std::get<SymbolSize>(dimension).symbol];
}

std::int64_t size_of(const Contract& contract, const State::Tensor& tensor, std::size_t index,
                     const KnownSizes& sizes) {
  const Dimension& dimension = tensor.spec.shape[index];
  if (const auto* fixed = std::get_if<FixedSize>(&dimension)) return fixed->size;
  const auto symbols = symbols_of(dimension);
  // An unconstrained dimension starts with its size in `initial`.
  if (symbols.empty()) {
    const auto missing = static_cast<std::int64_t>(tensor.spec.shape.size()) - tensor.initial.dim();
    return tensor.initial.size(static_cast<std::int64_t>(index) - missing);
  }
  std::string known;
  for (const auto& term : symbols) {
    const std::string& name = contract.symbols[term.symbol].name;
    if (!sizes[term.symbol]) {
      throw Error(
          ErrorKind::contract,
          "state." + tensor.spec.name + " cannot be created: the inputs do not determine " + name);
    }
    known += (known.empty() ? "" : ", ") + name + " " + std::to_string(*sizes[term.symbol]);
  }
  const std::int64_t size = *size_at(dimension, sizes);
  if (size >= 0) return size;
  throw Error(ErrorKind::contract, "state." + tensor.spec.name + " dim " + std::to_string(index) +
                                       " is " + std::to_string(size) + " at " + known);
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
    for (const Dimension& dimension : tensor.spec.shape) follows |= !symbols_of(dimension).empty();
  }
  if (!follows) return;
  KnownSizes sizes = sizes_of(contract, own_inputs);
  for (const State::Tensor& tensor : contract.state->tensors) {
    for (const Dimension& dimension : tensor.spec.shape) {
      for (const auto& [symbol, factor] : symbols_of(dimension)) {
        if (known_.empty() || known_[symbol] == sizes[symbol]) continue;
        const auto before = size_at(dimension, known_), now = size_at(dimension, sizes);
        if (before && before == now) continue;
        const auto text = [symbol = symbol](const KnownSizes& all) {
          return all[symbol] ? std::to_string(*all[symbol]) : "unknown";
        };
        throw Error(ErrorKind::contract, contract.symbols[symbol].name + " is " + text(sizes) +
                                             ", but state." + tensor.spec.name + " was made for " +
                                             text(known_) + ": call reset() before another size");
      }
    }
  }
  if (known_.empty()) known_ = std::move(sizes);
}

}  // namespace exporter
