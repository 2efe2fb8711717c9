#include "saved_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <vector>

namespace exporter::program {
namespace {

constexpr int kMaxSizeDepth = 32;

/// Reads `Name(operand, …)` from left to right. Every function returns nothing for other text.
class SizeReader {
 public:
  explicit SizeReader(std::string_view text) : text_(text) {}

  bool at_end() const { return text_.empty(); }

  std::optional<LinearSize> size() {
    if (++depth_ > kMaxSizeDepth) return std::nullopt;
    if (take("Integer(")) return integer();
    if (take("Symbol('")) return symbol();
    for (const auto& [name, combine] : kCombinations) {
      if (!take(name)) continue;
      const auto operands = operands_of();
      if (operands.size() < 2) return std::nullopt;
      auto result = operands.front();
      for (std::size_t i = 1; i < operands.size() && result; ++i) {
        result = operands[i] ? combine(*result, *operands[i]) : std::nullopt;
      }
      return result;
    }
    return std::nullopt;
  }

 private:
  using Found = std::optional<LinearSize>;

  bool take(std::string_view token) {
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  Found integer() {
    LinearSize number;
    const auto [end, status] =
        std::from_chars(text_.data(), text_.data() + text_.size(), number.offset);
    if (status != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return take(")") ? Found(number) : std::nullopt;
  }

  Found symbol() {
    const auto end = text_.find('\''), close = text_.find(')');
    if (end == std::string_view::npos || close == std::string_view::npos) return std::nullopt;
    LinearSize found{{{std::string(text_.substr(0, end)), 1}}};
    text_.remove_prefix(close + 1);
    return found;
  }

  /// Returns an empty list if the operands are malformed.
  std::vector<Found> operands_of() {
    std::vector<Found> operands;
    do {
      operands.push_back(size());
      if (!operands.back()) return {};
    } while (take(", "));
    return take(")") ? operands : std::vector<Found>{};
  }

  static Found product(const LinearSize& a, const LinearSize& b) {
    const LinearSize &number = a.factors.empty() ? a : b, &other = a.factors.empty() ? b : a;
    LinearSize made = other;
    bool overflows = __builtin_mul_overflow(other.offset, number.offset, &made.offset);
    for (auto& [symbol, factor] : made.factors) {
      overflows |= __builtin_mul_overflow(factor, number.offset, &factor);
    }
    if (!number.factors.empty() || other.divisor != 1 || overflows) return std::nullopt;
    return made;
  }

  static Found sum(const LinearSize& a, const LinearSize& b) {
    if (a.divisor != 1 || b.divisor != 1) return std::nullopt;
    LinearSize made = a;
    bool overflows = __builtin_add_overflow(a.offset, b.offset, &made.offset);
    for (const auto& [symbol, factor] : b.factors) {
      std::int64_t& sum = made.factors[symbol];
      overflows |= __builtin_add_overflow(sum, factor, &sum);
    }
    return overflows ? std::nullopt : Found(made);
  }

  static Found quotient(const LinearSize& a, const LinearSize& b) {
    if (a.divisor != 1 || !b.factors.empty() || b.offset < 1) return std::nullopt;
    LinearSize made = a;
    made.divisor = b.offset;
    return made;
  }

  using Combine = Found (*)(const LinearSize&, const LinearSize&);
  static constexpr std::pair<std::string_view, Combine> kCombinations[] = {
      {"Mul(", product}, {"Add(", sum}, {"FloorDiv(", quotient}};

  std::string_view text_;
  int depth_ = 0;
};

/// Removes a number from the front of the text and returns it.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<LinearSize> read_size(std::string_view text) {
  SizeReader reader(text);
  auto size = reader.size();
  return reader.at_end() ? size : std::nullopt;
}

std::optional<LinearSize> read_printed_size(std::string_view text) {
  LinearSize size;
  const auto factor = take_number(text);
  if (factor) {
    if (!text.starts_with('*')) return std::nullopt;
    text.remove_prefix(1);
  }
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  const auto end = std::ranges::find_if_not(text, is_part);
  const std::string symbol(text.begin(), end);
  text.remove_prefix(symbol.size());
  if (symbol.empty()) return std::nullopt;
  size.factors = {{symbol, factor.value_or(1)}};
  if (text.empty()) return size;
  const bool is_negative = text.starts_with(" - ");
  if (!is_negative && !text.starts_with(" + ")) return std::nullopt;
  text.remove_prefix(3);
  const auto offset = take_number(text);
  if (!offset || *offset < 0 || !text.empty()) return std::nullopt;
  size.offset = is_negative ? -*offset : *offset;
  return size;
}

}  // namespace exporter::program
