#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace exporter::program {

/// A size that depends on a sum of symbols: (factor * symbol + … + offset) / divisor, rounded down.
struct LinearSize {
  std::map<std::string, std::int64_t> factors;  ///< by symbol; empty: the size is `offset`
  std::int64_t offset = 0, divisor = 1;
};

/// Reads an expression as sympy's srepr writes it, such as
/// "Mul(Integer(2), Symbol('s77', positive=True, integer=True))". Returns nothing for one of
/// another form, such as the product of two symbols.
std::optional<LinearSize> read_size(std::string_view text);

/// Reads a size as sympy prints it, such as "s77", "4*s77" or "2*s77 - 1". Returns nothing for one
/// of another form.
std::optional<LinearSize> read_printed_size(std::string_view text);

}  // namespace exporter::program
