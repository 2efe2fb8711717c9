#pragma once

#include <filesystem>
#include <memory>

namespace exporter {

/// Unpacks a package and returns the folder that holds its `data`, valid as long as the pointer
/// lives. Packages with the same content share a folder, even one after the other: the system keeps
/// a closed library loaded, so each copy would cost its size. An unused folder is kept without
/// weights. Throws std::exception if the package cannot be unpacked. Concurrent calls wait for
/// each other.
std::shared_ptr<const std::filesystem::path> unpack(const std::filesystem::path& package);

}  // namespace exporter
