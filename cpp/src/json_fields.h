#pragma once

#include <exporter/error.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace exporter {

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
