// What Python computes with sizes: floor division, true division of integers, and so on.

#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

namespace exporter::program {
namespace {

using c10::IValue;
using Operands = std::span<const IValue>;

bool is_whole(const IValue& value) { return value.isInt() || value.isBool(); }

std::int64_t whole(const IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  throw std::runtime_error("a number is a " + value.tagKind() + ", not an int");
}

double real(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(whole(value));
}

bool truth(const IValue& value) { return value.isDouble() ? value.toDouble() != 0 : whole(value); }

bool both_whole(Operands x) { return is_whole(x[0]) && is_whole(x[1]); }

[[noreturn]] void overflow() { throw std::runtime_error("a size exceeds 64 bits"); }

std::int64_t checked(__int128 value) {
  if (value < std::numeric_limits<std::int64_t>::min() ||
      value > std::numeric_limits<std::int64_t>::max()) {
    overflow();
  }
  return static_cast<std::int64_t>(value);
}

std::int64_t to_int(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value >= -kLimit && value < kLimit)) overflow();
  return static_cast<std::int64_t>(value);
}

void require_divisor(const IValue& value) {
  if (real(value) == 0) throw std::runtime_error("division by zero");
}

IValue add(Operands x) {
  if (both_whole(x)) return checked(static_cast<__int128>(whole(x[0])) + whole(x[1]));
  return real(x[0]) + real(x[1]);
}

IValue subtract(Operands x) {
  if (both_whole(x)) return checked(static_cast<__int128>(whole(x[0])) - whole(x[1]));
  return real(x[0]) - real(x[1]);
}

IValue multiply(Operands x) {
  if (both_whole(x)) return checked(static_cast<__int128>(whole(x[0])) * whole(x[1]));
  return real(x[0]) * real(x[1]);
}

/// Rounds towards minus infinity, as // does.
IValue floor_divide(Operands x) {
  require_divisor(x[1]);
  if (!both_whole(x)) return std::floor(real(x[0]) / real(x[1]));
  const __int128 a = whole(x[0]), b = whole(x[1]);
  return checked(a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}

IValue divide(Operands x) {
  require_divisor(x[1]);
  return real(x[0]) / real(x[1]);
}

/// Has the divisor's sign, as % does.
IValue modulo(Operands x) {
  require_divisor(x[1]);
  if (!both_whole(x)) {
    const double rest = std::fmod(real(x[0]), real(x[1]));
    return rest != 0 && (rest < 0) != (real(x[1]) < 0) ? rest + real(x[1]) : rest;
  }
  const __int128 a = whole(x[0]), b = whole(x[1]), rest = a % b;
  return checked(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

IValue power(Operands x) {
  if (!both_whole(x) || whole(x[1]) < 0) return std::pow(real(x[0]), real(x[1]));
  const std::int64_t base = whole(x[0]), exponent = whole(x[1]);
  if (base == 0 || base == 1) return exponent == 0 ? std::int64_t{1} : base;
  if (base == -1) return exponent % 2 == 0 ? std::int64_t{1} : base;
  if (exponent > 62) overflow();
  __int128 product = 1;
  for (std::int64_t i = 0; i < exponent; ++i) product = checked(product * base);
  return checked(product);
}

IValue negate(Operands x) {
  return is_whole(x[0]) ? IValue(checked(-static_cast<__int128>(whole(x[0]))))
                        : IValue(-real(x[0]));
}

IValue positive(Operands x) { return is_whole(x[0]) ? IValue(whole(x[0])) : x[0]; }

template <typename Compare>
IValue compare(Operands x) {
  if (both_whole(x)) return Compare()(whole(x[0]), whole(x[1]));
  return Compare()(real(x[0]), real(x[1]));
}

/// Keeps a bool a bool, as & of two bools does.
template <typename Bits>
IValue bits(Operands x) {
  const std::int64_t value = Bits()(whole(x[0]), whole(x[1]));
  return x[0].isBool() && x[1].isBool() ? IValue(value != 0) : IValue(value);
}

IValue shift_left(Operands x) {
  const std::int64_t count = whole(x[1]);
  if (count < 0 || count > 62) overflow();
  return checked(static_cast<__int128>(whole(x[0])) << count);
}

IValue shift_right(Operands x) {
  const std::int64_t count = whole(x[1]);
  if (count < 0) overflow();
  return whole(x[0]) >> std::min<std::int64_t>(count, 63);
}

/// sym_max and sym_min return a float if either operand is one.
IValue maximum(Operands x) {
  if (both_whole(x)) return std::max(whole(x[0]), whole(x[1]));
  return std::max(real(x[0]), real(x[1]));
}

IValue minimum(Operands x) {
  if (both_whole(x)) return std::min(whole(x[0]), whole(x[1]));
  return std::min(real(x[0]), real(x[1]));
}

IValue truncate(Operands x) {
  return is_whole(x[0]) ? whole(x[0]) : to_int(std::trunc(real(x[0])));
}
IValue floor(Operands x) { return is_whole(x[0]) ? whole(x[0]) : to_int(std::floor(real(x[0]))); }
IValue ceil(Operands x) { return is_whole(x[0]) ? whole(x[0]) : to_int(std::ceil(real(x[0]))); }
IValue round(Operands x) {
  return is_whole(x[0]) ? whole(x[0]) : to_int(std::nearbyint(real(x[0])));
}
IValue to_float(Operands x) { return real(x[0]); }
IValue square_root(Operands x) { return std::sqrt(real(x[0])); }
IValue logical_not(Operands x) { return !truth(x[0]); }
IValue choose(Operands x) { return truth(x[0]) ? x[1] : x[2]; }
IValue absolute(Operands x) {
  return is_whole(x[0])
             ? IValue(checked(std::max<__int128>(whole(x[0]), -static_cast<__int128>(whole(x[0])))))
             : IValue(std::fabs(real(x[0])));
}

const std::map<std::string_view, NumberFunction> kFunctions = {
    {"_operator.add", {2, add}},
    {"_operator.sub", {2, subtract}},
    {"_operator.mul", {2, multiply}},
    {"_operator.floordiv", {2, floor_divide}},
    {"_operator.truediv", {2, divide}},
    {"_operator.mod", {2, modulo}},
    {"_operator.pow", {2, power}},
    {"_operator.neg", {1, negate}},
    {"_operator.pos", {1, positive}},
    {"_operator.abs", {1, absolute}},
    {"builtins.abs", {1, absolute}},
    {"_operator.eq", {2, compare<std::equal_to<>>}},
    {"_operator.ne", {2, compare<std::not_equal_to<>>}},
    {"_operator.lt", {2, compare<std::less<>>}},
    {"_operator.le", {2, compare<std::less_equal<>>}},
    {"_operator.gt", {2, compare<std::greater<>>}},
    {"_operator.ge", {2, compare<std::greater_equal<>>}},
    {"_operator.and_", {2, bits<std::bit_and<>>}},
    {"_operator.or_", {2, bits<std::bit_or<>>}},
    {"_operator.lshift", {2, shift_left}},
    {"_operator.rshift", {2, shift_right}},
    {"math.trunc", {1, truncate}},
    {"math.floor", {1, floor}},
    {"math.ceil", {1, ceil}},
    {"builtins.round", {1, round}},
    {"torch.sym_int", {1, truncate}},
    {"torch.sym_float", {1, to_float}},
    {"torch.sym_not", {1, logical_not}},
    {"torch.sym_max", {2, maximum}},
    {"torch.sym_min", {2, minimum}},
    {"torch.sym_ite", {3, choose}},
    {"torch.sym_sqrt", {1, square_root}},
    {"torch._sym_sqrt", {1, square_root}},
};

}  // namespace

const NumberFunction* find_number_function(std::string_view target) {
  const auto found = kFunctions.find(target);
  return found == kFunctions.end() ? nullptr : &found->second;
}

}  // namespace exporter::program
