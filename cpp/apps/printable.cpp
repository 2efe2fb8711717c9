#include "printable.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>

namespace exporter::app {
namespace {

/// Returns whether a terminal would interpret the character instead of showing it: control
/// characters, line separators, invisible and direction marks.
bool is_control(std::uint32_t point) {
  struct Range {
    std::uint32_t first, last;
  };
  constexpr Range kControls[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x200b, 0x200f},
                                 {0x2028, 0x202e}, {0x2060, 0x2069}, {0xfeff, 0xfeff},
                                 {0xd800, 0xdfff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
  return std::any_of(std::begin(kControls), std::end(kControls), [&](const Range& range) {
    return range.first <= point && point <= range.last;
  });
}

/// Returns the length in bytes of a UTF-8 character with this first byte; 0 if the byte is invalid.
std::size_t length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::uint32_t kMinimum[] = {0, 0, 0x80, 0x800, 0x10000};  // by length; rejects overlong
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = length_of(first);
    bool valid = length > 0 && length <= text.size() - at;
    std::uint32_t point = length == 1 ? first : first & (0x7fu >> length);
    for (std::size_t i = 1; valid && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      valid = (next & 0xc0) == 0x80;
      point = point << 6 | (next & 0x3f);
    }
    valid = valid && point >= kMinimum[length] && point <= 0x10ffff;
    shown += valid && !is_control(point) ? text.substr(at, length) : "\xef\xbf\xbd";
    at += valid ? length : 1;
  }
  return shown;
}

std::string dumped(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string counted(int count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

}  // namespace exporter::app
