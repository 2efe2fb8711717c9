#pragma once

#include <string>

namespace exporter::app {

/// Help for a subcommand, or for the program when `command` is empty.
std::string help(const std::string& command);

}  // namespace exporter::app
