#include "expression.h"

#include <exporter/error.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace exporter {
namespace {

/// Holds every product of two 64-bit numbers.
using Wide = __int128;

Wide floor_divide(Wide number, Wide divisor) {
  return number / divisor - (number % divisor < 0 ? 1 : 0);
}

std::int64_t narrow(Wide number) {
  using Limits = std::numeric_limits<std::int64_t>;
  return static_cast<std::int64_t>(std::clamp<Wide>(number, Limits::min(), Limits::max()));
}

[[noreturn]] void malformed(std::string_view text, const std::string& remedy) {
  throw Error(ErrorKind::artifact, "`" + std::string(text) + "` is not a size: " + remedy);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Letters, digits, underscores, and every non-ASCII character.
bool is_part_of_name(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// What is left of a text that is read from left to right.
class Rest {
 public:
  explicit Rest(std::string_view text) : text_(text) {}

  bool starts_with_digit() const { return !text_.empty() && is_digit(text_.front()); }
  bool empty() const { return text_.empty(); }

  bool take(std::string_view token) {
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  /// Returns 0, which is not a valid factor or divisor, if the number does not fit in 64 bits.
  std::int64_t take_number() {
    std::int64_t number = 0;
    if (!starts_with_digit()) return 0;
    const auto [end, status] = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return status == std::errc{} ? number : 0;
  }

  std::string take_name() {
    const auto end = std::find_if_not(text_.begin(), text_.end(), is_part_of_name);
    const std::string name(text_.begin(), end);
    text_.remove_prefix(name.size());
    return name;
  }

 private:
  std::string_view text_;
};

}  // namespace

std::int64_t Expression::at(std::int64_t size) const {
  return narrow(floor_divide(Wide{factor} * size + offset, divisor));
}

std::pair<std::string, Expression> parse_expression(std::string_view text) {
  constexpr const char* kForm = "write NAME, or (A*NAME+B)//C";
  Rest rest(text);
  Expression found;
  const bool in_brackets = rest.take("(");
  if (rest.starts_with_digit()) {
    found.factor = rest.take_number();
    if (!rest.take("*")) malformed(text, kForm);
  }
  const std::string name = rest.take_name();
  if (rest.take("+")) {
    found.offset = rest.take_number();
  } else if (rest.take("-")) {
    found.offset = -rest.take_number();
  }
  if (in_brackets && !rest.take(")")) malformed(text, kForm);
  if (rest.take("//")) found.divisor = rest.take_number();
  const bool begins_badly =
      name.empty() || is_digit(name.front()) || static_cast<unsigned char>(name.front()) >= 0x80;
  if (!rest.empty() || begins_badly) malformed(text, kForm);
  if (found.factor < 1 || found.divisor < 1)
    malformed(text, "the factor and the divisor must be positive");
  const std::string canonical = to_string(found, name);
  if (canonical != text) malformed(text, "write it as " + canonical);
  return {name, found};
}

std::string to_string(const Expression& expression, std::string_view name) {
  std::string text(name);
  if (expression.factor != 1) text = std::to_string(expression.factor) + "*" + text;
  if (expression.offset > 0) text += "+";
  if (expression.offset != 0) text += std::to_string(expression.offset);
  if (expression.divisor == 1) return text;
  if (text != name) text = "(" + text + ")";
  return text + "//" + std::to_string(expression.divisor);
}

Interval solve(const Expression& expression, std::int64_t value) {
  const Wide smallest = Wide{value} * expression.divisor - expression.offset;
  const Wide largest = smallest + expression.divisor - 1;
  return {narrow(-floor_divide(-smallest, expression.factor)),
          narrow(floor_divide(largest, expression.factor))};
}

}  // namespace exporter
