#include <exporter/contract.h>
#include <exporter/error.h>

#include <algorithm>
#include <limits>

#include "expression.h"
#include "form.h"
#include "guard.h"
#include "state.h"

namespace exporter {
namespace {

/// The sizes of the symbols in one call, and the inputs that determined them.
struct Bindings {
  explicit Bindings(std::size_t count) : sizes(count), inputs(count) {}

  KnownSizes sizes;
  std::vector<std::size_t> inputs;
};

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::contract, message); }

std::string at_dimension(const TensorSpec& spec, std::size_t dimension) {
  return spec.name + " dim " + std::to_string(dimension);
}

[[noreturn]] void refuse_count(const Contract& contract, std::size_t given, std::size_t wanted) {
  std::string names;
  for (std::size_t i = 0; i < wanted; ++i) names += (i == 0 ? "" : ", ") + contract.inputs[i].name;
  refuse(std::to_string(given) + " inputs given, the contract has " + std::to_string(wanted) +
         (wanted < contract.inputs.size() ? " beside its state: " : ": ") + names);
}

void check_fixed(const TensorSpec& spec, std::size_t dimension, std::int64_t want,
                 std::int64_t got) {
  if (got == want) return;
  refuse(at_dimension(spec, dimension) + " is " + std::to_string(got) + ", the contract wants " +
         std::to_string(want));
}

/// Returns the size of a symbol and the input it comes from, as text.
std::string describe_binding(const Contract& contract, std::size_t symbol,
                             const Bindings& bindings) {
  return contract.symbols[symbol].name + " is " + std::to_string(*bindings.sizes[symbol]) +
         " (from " + contract.inputs[bindings.inputs[symbol]].name + ")";
}

/// Returns the known symbols of an expression, as the end of a message.
std::string describe_known(const Contract& contract, const Expression& expression,
                           const Bindings& bindings) {
  std::string text;
  for (const auto& term : terms_of(expression)) {
    if (!bindings.sizes[term.symbol]) continue;
    text += (text.empty() ? ", for " : " and ") + describe_binding(contract, term.symbol, bindings);
  }
  return text;
}

/// Returns whether the symbol may have one of these sizes.
bool allows_any(const Symbol& symbol, Interval sizes) {
  const auto& choices = symbol.choices;
  if (!choices.empty()) {
    return std::any_of(choices.begin(), choices.end(), [&](std::int64_t size) {
      return sizes.min <= size && size <= sizes.max && symbol.allows(size);
    });
  }
  const __int128 least = std::max(sizes.min, symbol.min);
  const __int128 most = std::min(sizes.max, symbol.max);
  const __int128 rest = (most % symbol.multiple_of + symbol.multiple_of) % symbol.multiple_of;
  return most - rest >= least;
}

std::int64_t largest(const Symbol& symbol) {
  if (!symbol.choices.empty()) return std::ranges::max(symbol.choices);
  return symbol.max - symbol.max % symbol.multiple_of;
}

void set_size(const Contract& contract, std::size_t input, std::size_t dimension, std::size_t index,
              std::int64_t size, Bindings& bindings, const std::string& because = {}) {
  const Symbol& symbol = contract.symbols[index];
  if (!symbol.allows(size)) {
    refuse(at_dimension(contract.inputs[input], dimension) + ": " + symbol.name + " is " +
           std::to_string(size) + ", the contract allows " + describe_range(symbol) + because);
  }
  bindings.sizes[index] = size;
  bindings.inputs[index] = input;
}

void check_symbol(const Contract& contract, std::size_t input, std::size_t dimension,
                  std::size_t index, std::int64_t got, Bindings& bindings) {
  if (!bindings.sizes[index]) {
    set_size(contract, input, dimension, index, got, bindings);
  } else if (*bindings.sizes[index] != got) {
    refuse(at_dimension(contract.inputs[input], dimension) + " is " + std::to_string(got) +
           " but " + describe_binding(contract, index, bindings));
  }
}

/// How many symbols of an expression are unknown, and the last of them.
struct Unknown {
  std::size_t count = 0, symbol = 0;
};

Unknown unknown_of(const Expression& expression, const KnownSizes& sizes) {
  Unknown unknown;
  const auto look = [&](std::size_t symbol) {
    if (!sizes[symbol]) unknown = {unknown.count + 1, symbol};
  };
  look(expression.symbol);
  for (const Expression::Term& term : expression.others) look(term.symbol);
  return unknown;
}

/// Binds the unknown symbol of an expression if there is only one, and exactly one size fits.
/// Returns whether it did.
bool bind_solved(const Contract& contract, std::size_t input, std::size_t dimension,
                 const Expression& expression, std::int64_t got, Bindings& bindings) {
  const Unknown unknown = unknown_of(expression, bindings.sizes);
  if (expression.divisor != 1 || unknown.count != 1) return false;
  const Interval sizes = solve(expression, got, unknown.symbol, bindings.sizes);
  if (sizes.min != sizes.max) return false;
  set_size(contract, input, dimension, unknown.symbol, sizes.min, bindings,
           expression.others.empty() ? "" : describe_known(contract, expression, bindings));
  return true;
}

/// Returns whether unknown symbols can give the expression this value. Of several, only the
/// smallest and the largest sizes count.
bool may_be(const Contract& contract, const Expression& expression, std::int64_t got,
            const Unknown& unknown, const KnownSizes& known) {
  if (unknown.count == 1) {
    return allows_any(contract.symbols[unknown.symbol],
                      solve(expression, got, unknown.symbol, known));
  }
  KnownSizes least = known, most = known;
  for (const auto& term : terms_of(expression)) {
    if (known[term.symbol]) continue;
    least[term.symbol] = contract.symbols[term.symbol].smallest();
    most[term.symbol] = largest(contract.symbols[term.symbol]);
  }
  return value_at(expression, least) <= got && got <= value_at(expression, most);
}

/// Checks an expression against the symbols' sizes, or, if some are unknown, against their ranges.
void check_expression(const Contract& contract, std::size_t input, std::size_t dimension,
                      const Expression& expression, std::int64_t got, const Bindings& bindings) {
  const Unknown unknown = unknown_of(expression, bindings.sizes);
  const auto text = [&] { return to_string(expression, contract.symbols); };
  const auto where = [&] {
    return at_dimension(contract.inputs[input], dimension) + " is " + std::to_string(got);
  };
  if (unknown.count == 0) {
    const std::int64_t want = value_at(expression, bindings.sizes);
    if (got == want) return;
    refuse(where() + ", not " + text() + " = " + std::to_string(want) +
           describe_known(contract, expression, bindings));
  }
  if (may_be(contract, expression, got, unknown, bindings.sizes)) return;
  std::string allowed;
  for (const auto& term : terms_of(expression)) {
    if (bindings.sizes[term.symbol]) continue;
    const Symbol& symbol = contract.symbols[term.symbol];
    allowed += (allowed.empty() ? "" : " and ") + symbol.name + " of " + describe_range(symbol);
  }
  refuse(where() + ": no " + allowed + " gives " + text() + " = " + std::to_string(got) +
         describe_known(contract, expression, bindings));
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
  if (const std::string form = unusual_form(tensor); !form.empty()) {
    refuse(spec.name + ": the tensor is " + form + ", the contract wants a dense one with values");
  }
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
    if (const auto* fixed = std::get_if<FixedSize>(&spec.shape[d])) {
      check_fixed(spec, d, fixed->size, sizes[d]);
    } else if (const auto* follows = std::get_if<SymbolSize>(&spec.shape[d])) {
      check_symbol(contract, input, d, follows->symbol, sizes[d], bindings);
    }
  }
}

/// Checks inputs against the first `wanted` specs. Returns the sizes of the symbols.
Bindings check_inputs(const Contract& contract, std::span<const at::Tensor> given,
                      std::size_t wanted) {
  if (given.size() != wanted) refuse_count(contract, given.size(), wanted);
  return guarded(ErrorKind::contract, "the inputs cannot be inspected", [&] {
    Bindings bindings(contract.symbols.size());
    for (std::size_t i = 0; i < given.size(); ++i) check_input(contract, i, given[i], bindings);
    bool bound = false;
    const auto solve_all = [&](bool sums) {
      bound = false;
      for_each_expression(contract, given,
                          [&](std::size_t input, std::size_t dimension,
                              const Expression& expression, std::int64_t got) {
                            if (expression.others.empty() == sums) return;
                            bound |=
                                bind_solved(contract, input, dimension, expression, got, bindings);
                          });
    };
    solve_all(false);
    do solve_all(true);
    while (bound);  // another sum may have only one unknown symbol now
    for_each_expression(contract, given, [&](const auto&... where) {
      check_expression(contract, where..., bindings);
    });
    return bindings;
  });
}

}  // namespace

bool Symbol::allows(std::int64_t size) const {
  if (size < min || size > max || size % multiple_of != 0) return false;
  return choices.empty() || std::find(choices.begin(), choices.end(), size) != choices.end();
}

void Contract::check(std::span<const at::Tensor> given) const {
  check_inputs(*this, given, inputs.size());
}

KnownSizes sizes_of(const Contract& contract, std::span<const at::Tensor> own_inputs) {
  return check_inputs(contract, own_inputs, contract.own_inputs()).sizes;
}

std::string describe_range(const Symbol& symbol) {
  if (symbol.choices.empty()) {
    const bool is_open = symbol.max == std::numeric_limits<std::int64_t>::max();
    const std::string range =
        std::to_string(symbol.min) + (is_open ? " or more" : " to " + std::to_string(symbol.max));
    if (symbol.multiple_of == 1) return range;
    return range + ", multiples of " + std::to_string(symbol.multiple_of);
  }
  std::string text;
  for (std::size_t i = 0; i < symbol.choices.size(); ++i) {
    if (i > 0) text += i + 1 == symbol.choices.size() ? " or " : ", ";
    text += std::to_string(symbol.choices[i]);
  }
  return text;
}

std::string describe_shape(const TensorSpec& spec, const Contract& contract) {
  std::string text = "[";
  for (const Dimension& dimension : spec.shape) {
    if (text.size() > 1) text += ", ";
    if (const auto* fixed = std::get_if<FixedSize>(&dimension)) {
      text += std::to_string(fixed->size);
    } else if (const auto* follows = std::get_if<SymbolSize>(&dimension)) {
      text += contract.symbols[follows->symbol].name;
    } else if (const auto* expression = std::get_if<Expression>(&dimension)) {
      text += to_string(*expression, contract.symbols);
    } else {
      text += "?";
    }
  }
  return text + "]";
}

}  // namespace exporter
