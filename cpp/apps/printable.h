#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace exporter::app {

/// Makes text from a file safe to print on a terminal: replaces control characters, line
/// separators, invisible and direction marks, and invalid UTF-8 with U+FFFD.
std::string printable(std::string_view text);

/// Returns JSON in one line. Bytes that are not UTF-8, as a path may have, become U+FFFD.
std::string dumped(const nlohmann::ordered_json& json);

/// Returns "1 thread" or "2 threads".
std::string counted(int count, std::string_view what);

}  // namespace exporter::app
