#pragma once

#include <filesystem>

namespace exporter {

/// Returns the folder that this process loaded libc10.so from; empty if it is not known.
std::filesystem::path libtorch_directory();

}  // namespace exporter
