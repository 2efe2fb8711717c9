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

/// Returns a + factor * size, or the nearest number of 128 bits.
Wide add_product(Wide a, std::int64_t factor, std::int64_t size) {
  const Wide product = Wide{factor} * size;
  Wide sum = 0;
  if (!__builtin_add_overflow(a, product, &sum)) return sum;
  constexpr Wide kMax = static_cast<Wide>(~static_cast<unsigned __int128>(0) >> 1);
  return product > 0 ? kMax : -kMax;
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

constexpr const char* kForm = "write NAME, (A*NAME+B)//C, or a sum of names";

/// A name in an expression with its factor.
struct NamedTerm {
  std::string name;
  std::int64_t factor = 1;
};

/// What an expression says, without indices of symbols.
struct Parts {
  std::vector<NamedTerm> terms;
  std::int64_t offset = 0, divisor = 1;
};

bool begins_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) &&
         static_cast<unsigned char>(text.front()) < 0x80;
}

/// Reads terms, of which the last may be a number, up to a bracket or a division.
Parts take_numerator(Rest& rest, std::string_view text) {
  Parts found;
  while (true) {
    NamedTerm term;
    if (rest.starts_with_digit()) {
      const std::int64_t number = rest.take_number();
      if (!rest.take("*")) {
        if (found.terms.empty()) malformed(text, kForm);
        found.offset = number;
        return found;
      }
      term.factor = number;
    }
    term.name = rest.take_name();
    if (!begins_name(term.name)) malformed(text, kForm);
    if (term.factor < 1) malformed(text, "the factors and the divisor must be positive");
    found.terms.push_back(std::move(term));
    if (rest.take("+")) continue;
    if (rest.take("-")) found.offset = -rest.take_number();
    return found;
  }
}

/// Sorts the terms and adds those of equal names.
void arrange(std::vector<NamedTerm>& terms, std::string_view text) {
  std::ranges::stable_sort(terms, {}, &NamedTerm::name);
  std::vector<NamedTerm> merged;
  for (NamedTerm& term : terms) {
    if (merged.empty() || merged.back().name != term.name) {
      merged.push_back(std::move(term));
    } else if (__builtin_add_overflow(merged.back().factor, term.factor, &merged.back().factor)) {
      malformed(text, kForm);
    }
  }
  terms = std::move(merged);
}

std::string print(const Parts& parts) {
  std::string text;
  for (const NamedTerm& term : parts.terms) {
    if (!text.empty()) text += "+";
    if (term.factor != 1) text += std::to_string(term.factor) + "*";
    text += term.name;
  }
  if (parts.offset > 0) text += "+";
  if (parts.offset != 0) text += std::to_string(parts.offset);
  if (parts.divisor == 1) return text;
  if (text != parts.terms.front().name) text = "(" + text + ")";
  return text + "//" + std::to_string(parts.divisor);
}

Parts parse(std::string_view text) {
  Rest rest(text);
  const bool in_brackets = rest.take("(");
  Parts found = take_numerator(rest, text);
  if (in_brackets && !rest.take(")")) malformed(text, kForm);
  if (rest.take("//")) found.divisor = rest.take_number();
  if (!rest.empty()) malformed(text, kForm);
  if (found.divisor < 1) malformed(text, "the factors and the divisor must be positive");
  arrange(found.terms, text);
  const std::string canonical = print(found);
  if (canonical != text) malformed(text, "write it as " + canonical);
  return found;
}

std::size_t index_of(const std::string& name, std::span<const Symbol> symbols) {
  const auto found = std::ranges::find(symbols, name, &Symbol::name);
  if (found != symbols.end()) return static_cast<std::size_t>(found - symbols.begin());
  throw Error(ErrorKind::artifact, "symbol " + name + " has no range");
}

}  // namespace

std::int64_t Expression::at(std::int64_t size) const {
  return narrow(floor_divide(Wide{factor} * size + offset, divisor));
}

std::int64_t Expression::at(std::span<const std::int64_t> sizes) const {
  Wide sum = add_product(offset, factor, sizes[symbol]);
  for (const Term& term : others) sum = add_product(sum, term.factor, sizes[term.symbol]);
  return narrow(floor_divide(sum, divisor));
}

std::int64_t value_at(const Expression& expression, const KnownSizes& sizes) {
  Wide sum = add_product(expression.offset, expression.factor, *sizes[expression.symbol]);
  for (const auto& term : expression.others) {
    sum = add_product(sum, term.factor, *sizes[term.symbol]);
  }
  return narrow(floor_divide(sum, expression.divisor));
}

Expression parse_expression(std::string_view text, std::span<const Symbol> symbols) {
  const Parts parts = parse(text);
  Expression found{.offset = parts.offset, .divisor = parts.divisor};
  for (const NamedTerm& term : parts.terms) {
    found.others.push_back({index_of(term.name, symbols), term.factor});
  }
  found.symbol = found.others.front().symbol;
  found.factor = found.others.front().factor;
  found.others.erase(found.others.begin());
  return found;
}

std::string to_string(const Expression& expression, std::span<const Symbol> symbols) {
  Parts parts{{}, expression.offset, expression.divisor};
  for (const Expression::Term& term : terms_of(expression)) {
    parts.terms.push_back({symbols[term.symbol].name, term.factor});
  }
  return print(parts);
}

std::vector<Expression::Term> terms_of(const Expression& expression) {
  std::vector<Expression::Term> terms = {{expression.symbol, expression.factor}};
  terms.insert(terms.end(), expression.others.begin(), expression.others.end());
  return terms;
}

bool is_symbol(const Expression& expression) {
  return expression == Expression{.symbol = expression.symbol};
}

Interval solve(const Expression& expression, std::int64_t value, std::size_t unknown,
               const KnownSizes& known) {
  std::int64_t factor = expression.factor;
  Wide smallest = Wide{value} * expression.divisor - expression.offset;
  const auto take = [&](std::size_t symbol, std::int64_t of_symbol) {
    if (symbol == unknown) {
      factor = of_symbol;
    } else {
      smallest = add_product(smallest, -of_symbol, *known[symbol]);
    }
  };
  take(expression.symbol, expression.factor);
  for (const Expression::Term& term : expression.others) take(term.symbol, term.factor);
  const Wide largest = add_product(smallest, 1, expression.divisor - 1);
  return {narrow(-floor_divide(-smallest, factor)), narrow(floor_divide(largest, factor))};
}

}  // namespace exporter
