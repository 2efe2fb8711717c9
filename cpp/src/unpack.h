#pragma once

#include <filesystem>
#include <memory>

namespace exporter {

/// The folder that holds a package's `data`, unpacked, for as long as the pointer lives. Packages
/// of the same content share it, also one after the other: the system keeps their library loaded
/// even when it is closed, so that each copy would cost its size. What nobody uses is kept without
/// its weights. Throws std::exception where it cannot be unpacked. Not for two threads at a time.
std::shared_ptr<const std::filesystem::path> unpack(const std::filesystem::path& package);

}  // namespace exporter
