#pragma once

#include <exporter/contract.h>

#include <string>
#include <string_view>
#include <utility>

namespace exporter {

/// Parses an expression such as `2*n+1`, `n//16` or `(n+1)//2`. Returns the symbol's name and the
/// expression, whose symbol index is not set. Throws Error(artifact) for any other text, including
/// other spellings of the same expression.
std::pair<std::string, Expression> parse_expression(std::string_view text);

/// Returns the expression as text, as contracts write it.
std::string to_string(const Expression& expression, std::string_view name);

/// Sizes of a symbol, including both ends; empty if min > max.
struct Interval {
  std::int64_t min;
  std::int64_t max;
};

/// Returns the sizes for which the expression has this value; at most one if the divisor is 1.
Interval solve(const Expression& expression, std::int64_t value);

}  // namespace exporter
