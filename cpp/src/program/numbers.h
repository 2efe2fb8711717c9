#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

namespace exporter::program {

/// A function of numbers with Python's semantics. Its operands and its result are int, float or
/// bool.
using Arithmetic = c10::IValue (*)(std::span<const c10::IValue>);

struct NumberFunction {
  std::size_t operands;
  Arithmetic function;
};

/// Returns the function that a saved program calls by this name, such as "_operator.floordiv" or
/// "torch.sym_max"; nullptr if it is unknown.
const NumberFunction* find_number_function(std::string_view target);

}  // namespace exporter::program
