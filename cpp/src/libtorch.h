#pragma once

#include <filesystem>

namespace exporter {

/// The folder that this process's libc10.so was loaded from; empty when it cannot be told.
std::filesystem::path libtorch_directory();

}  // namespace exporter
