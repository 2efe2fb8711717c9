#pragma once

#include <exporter/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace exporter {

/// Parses JSON. Throws std::runtime_error if it is nested so deeply that reading it could exhaust
/// the stack, and nlohmann::json::exception if it is not JSON.
inline nlohmann::json parse_json(std::string_view text) {
  constexpr int kMostLevels = 1000;  // a program with the deepest graphs that are read has 600
  int levels = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {  // a callback of the parser would be quadratic
    const char found = text[at];
    if (in_string) {
      if (found == '\\') ++at;
      in_string = found != '"';
    } else if (found == '"') {
      in_string = true;
    } else if (found == '[' || found == '{') {
      if (++levels > kMostLevels) throw std::runtime_error("its JSON is nested too deeply");
    } else if (found == ']' || found == '}') {
      --levels;
    }
  }
  return nlohmann::json::parse(text);
}

/// Throws Error(artifact) unless `node` is an object with no other fields than these. An unknown
/// field could change the meaning of the others.
inline void require_fields(const nlohmann::json& node, std::string_view what,
                           std::initializer_list<std::string_view> known) {
  if (!node.is_object()) throw Error(ErrorKind::artifact, std::string(what) + " is not an object");
  for (const auto& [name, ignored] : node.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error(ErrorKind::artifact, std::string(what) + " has no field " + name);
  }
}

/// Returns a 64-bit integer. Throws Error(artifact) for anything else, which the JSON library would
/// round or, for `true`, take as 1.
inline std::int64_t whole(const nlohmann::json& node, std::string_view what) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = !node.is_number_unsigned() || node.get<std::uint64_t>() <= kMost;
  if (node.is_number_integer() && fits) return node.get<std::int64_t>();
  throw Error(ErrorKind::artifact,
              std::string(what) + " is " + node.dump() + ", not a 64-bit integer");
}

}  // namespace exporter
