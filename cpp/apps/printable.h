#pragma once

#include <string>
#include <string_view>

namespace exporter::app {

/// Text from a file as a terminal may show it: what a terminal would obey, or what is no UTF-8,
/// becomes U+FFFD.
std::string printable(std::string_view text);

}  // namespace exporter::app
