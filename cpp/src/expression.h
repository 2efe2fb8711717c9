#pragma once

#include <exporter/contract.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace exporter {

/// The sizes of symbols, in the contract's order, as far as they are known.
using KnownSizes = std::vector<std::optional<std::int64_t>>;

/// Parses an expression such as `2*n+1`, `n//16`, `(n+1)//2` or `past+seq`; `symbols` has its
/// symbols. Throws Error(artifact) for any other text, including other spellings of the same
/// expression, and for an unknown symbol.
Expression parse_expression(std::string_view text, std::span<const Symbol> symbols);

/// Returns the expression as text, as contracts write it.
std::string to_string(const Expression& expression, std::span<const Symbol> symbols);

/// Returns the symbols of an expression with their factors.
std::vector<Expression::Term> terms_of(const Expression& expression);

/// Returns whether the expression is nothing but a symbol.
bool is_symbol(const Expression& expression);

/// Returns the value of an expression of which all symbols are known.
std::int64_t value_at(const Expression& expression, const KnownSizes& sizes);

/// Sizes of a symbol, including both ends; empty if min > max.
struct Interval {
  std::int64_t min;
  std::int64_t max;
};

/// Returns the sizes of the symbol `unknown`, the only one whose size is not known, for which the
/// expression has this value; at most one if the divisor is 1.
Interval solve(const Expression& expression, std::int64_t value, std::size_t unknown,
               const KnownSizes& known);

}  // namespace exporter
