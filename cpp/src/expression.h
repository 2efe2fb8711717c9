#pragma once

#include <exporter/contract.h>

#include <string>
#include <string_view>
#include <utility>

namespace exporter {

/// Reads `2*n+1`, `n//16` or `(n+1)//2`: the symbol's name, and the expression without its index.
/// Throws Error(artifact) for any other text, another way of writing the same included.
std::pair<std::string, Expression> parse_expression(std::string_view text);

/// The expression as contracts write it, with the symbol's name.
std::string to_string(const Expression& expression, std::string_view name);

/// Sizes of a symbol, both ends included; none when min > max.
struct Interval {
  std::int64_t min;
  std::int64_t max;
};

/// The sizes at which the expression has this value; at most one where the divisor is 1.
Interval solve(const Expression& expression, std::int64_t value);

}  // namespace exporter
