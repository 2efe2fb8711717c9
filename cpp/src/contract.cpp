#include <exporter/contract.h>
#include <exporter/error.h>

#include <algorithm>

#include "expression.h"

namespace exporter {
namespace {

constexpr std::size_t kUnset = static_cast<std::size_t>(-1);

/// The size of a symbol in one call, and the input that gave it.
struct Binding {
  std::int64_t size = 0;
  std::size_t input = kUnset;
};

using Bindings = std::vector<Binding>;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::contract, message); }

std::string at_dimension(const TensorSpec& spec, std::size_t dimension) {
  return spec.name + " dim " + std::to_string(dimension);
}

[[noreturn]] void refuse_count(const Contract& contract, std::size_t given) {
  std::string names;
  for (const TensorSpec& spec : contract.inputs) names += (names.empty() ? "" : ", ") + spec.name;
  refuse(std::to_string(given) + " inputs given, the contract has " +
         std::to_string(contract.inputs.size()) + ": " + names);
}

void check_fixed(const TensorSpec& spec, std::size_t dimension, std::int64_t want,
                 std::int64_t got) {
  if (got == want) return;
  refuse(at_dimension(spec, dimension) + " is " + std::to_string(got) + ", the contract wants " +
         std::to_string(want));
}

/// What a symbol is known to be, and from where.
std::string describe_binding(const Contract& contract, const Symbol& symbol,
                             const Binding& binding) {
  return symbol.name + " is " + std::to_string(binding.size) + " (from " +
         contract.inputs[binding.input].name + ")";
}

std::string describe_range(const Symbol& symbol) {
  if (!symbol.choices.empty()) {
    std::string text;
    for (const std::int64_t size : symbol.choices) {
      text += (text.empty() ? "" : ", ") + std::to_string(size);
    }
    return text;
  }
  return std::to_string(symbol.min) + ".." + std::to_string(symbol.max);
}

void bind(const Contract& contract, std::size_t input, std::size_t dimension, std::size_t index,
          std::int64_t size, Bindings& bindings) {
  const Symbol& symbol = contract.symbols[index];
  const auto& choices = symbol.choices;
  const bool chosen =
      choices.empty() || std::find(choices.begin(), choices.end(), size) != choices.end();
  if (size < symbol.min || size > symbol.max || !chosen) {
    refuse(at_dimension(contract.inputs[input], dimension) + ": " + symbol.name + " is " +
           std::to_string(size) + ", the contract allows " + describe_range(symbol));
  }
  bindings[index] = {size, input};
}

void check_symbol(const Contract& contract, std::size_t input, std::size_t dimension,
                  std::size_t index, std::int64_t got, Bindings& bindings) {
  const Binding& binding = bindings[index];
  if (binding.input == kUnset) {
    bind(contract, input, dimension, index, got, bindings);
  } else if (binding.size != got) {
    refuse(at_dimension(contract.inputs[input], dimension) + " is " + std::to_string(got) +
           " but " + describe_binding(contract, contract.symbols[index], binding));
  }
}

/// Binds the symbol of an expression that only one size can give, unless it is bound already.
void bind_solved(const Contract& contract, std::size_t input, std::size_t dimension,
                 const Expression& expression, std::int64_t got, Bindings& bindings) {
  if (expression.divisor != 1 || bindings[expression.symbol].input != kUnset) return;
  const Interval sizes = solve(expression, got);
  if (sizes.min == sizes.max) {
    bind(contract, input, dimension, expression.symbol, sizes.min, bindings);
  }
}

/// Checks against the symbol's size; where that is not known, that some size in its range will do.
void check_expression(const Contract& contract, std::size_t input, std::size_t dimension,
                      const Expression& expression, std::int64_t got, const Bindings& bindings) {
  const Symbol& symbol = contract.symbols[expression.symbol];
  const Binding& binding = bindings[expression.symbol];
  const auto where = [&] {
    return at_dimension(contract.inputs[input], dimension) + " is " + std::to_string(got);
  };
  if (binding.input != kUnset) {
    const std::int64_t want = expression.at(binding.size);
    if (got == want) return;
    refuse(where() + ", not " + to_string(expression, symbol.name) + " = " + std::to_string(want) +
           ", for " + describe_binding(contract, symbol, binding));
  }
  const Interval sizes = solve(expression, got);
  if (std::max(sizes.min, symbol.min) > std::min(sizes.max, symbol.max)) {
    refuse(where() + ": no " + symbol.name + " in " + describe_range(symbol) + " gives " +
           to_string(expression, symbol.name) + " = " + std::to_string(got));
  }
}

/// Calls `action(input, dimension, expression, size)` for every dimension that is an expression.
template <typename Action>
void for_each_expression(const Contract& contract, std::span<const at::Tensor> given,
                         Action&& action) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& shape = contract.inputs[i].shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const auto* expression = std::get_if<Expression>(&shape[d]);
      if (expression != nullptr) action(i, d, *expression, given[i].size(static_cast<int>(d)));
    }
  }
}

void check_input(const Contract& contract, std::size_t input, const at::Tensor& tensor,
                 Bindings& bindings) {
  const TensorSpec& spec = contract.inputs[input];
  if (!tensor.defined()) refuse(spec.name + ": no tensor given");
  if (tensor.scalar_type() != spec.dtype) {
    refuse(spec.name + ": dtype " + dtype_name(tensor.scalar_type()) + ", the contract wants " +
           dtype_name(spec.dtype));
  }
  const auto sizes = tensor.sizes();
  if (sizes.size() != spec.shape.size()) {
    refuse(spec.name + ": " + std::to_string(sizes.size()) + " dimensions, the contract wants " +
           std::to_string(spec.shape.size()));
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (const auto* fixed = std::get_if<std::int64_t>(&spec.shape[d])) {
      check_fixed(spec, d, *fixed, sizes[d]);
    } else if (const auto* symbol = std::get_if<std::size_t>(&spec.shape[d])) {
      check_symbol(contract, input, d, *symbol, sizes[d], bindings);
    }
  }
}

}  // namespace

void Contract::check(std::span<const at::Tensor> given) const {
  if (given.size() != inputs.size()) refuse_count(*this, given.size());
  Bindings bindings(symbols.size());
  for (std::size_t i = 0; i < given.size(); ++i) check_input(*this, i, given[i], bindings);
  for_each_expression(*this, given,
                      [&](const auto&... where) { bind_solved(*this, where..., bindings); });
  for_each_expression(*this, given,
                      [&](const auto&... where) { check_expression(*this, where..., bindings); });
}

std::string describe_shape(const TensorSpec& spec, const Contract& contract) {
  std::string text = "[";
  for (const Dimension& dimension : spec.shape) {
    if (text.size() > 1) text += ", ";
    if (const auto* fixed = std::get_if<std::int64_t>(&dimension)) {
      text += std::to_string(*fixed);
    } else if (const auto* symbol = std::get_if<std::size_t>(&dimension)) {
      text += contract.symbols[*symbol].name;
    } else if (const auto* expression = std::get_if<Expression>(&dimension)) {
      text += to_string(*expression, contract.symbols[expression->symbol].name);
    } else {
      text += "?";
    }
  }
  return text + "]";
}

}  // namespace exporter
