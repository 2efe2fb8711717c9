#pragma once

#include <filesystem>
#include <memory>

namespace exporter {

/// A package in a folder of this process.
class Unpacked {
 public:
  virtual ~Unpacked() = default;

  /// Returns the folder that holds the package's `data`.
  virtual const std::filesystem::path& folder() const = 0;

  /// Removes the folder, once everything in it is loaded. Otherwise the destructor does.
  virtual void remove_folder() noexcept = 0;
};

/// Unpacks a package, except weights that `Weights` maps. Packages with the same content share
/// their libraries, even one after the other: the system keeps a closed library loaded, so each
/// copy would cost its size. An unused library is kept without weights. Throws std::exception if
/// the package cannot be unpacked. Concurrent calls wait for each other.
std::unique_ptr<Unpacked> unpack(const std::filesystem::path& package);

}  // namespace exporter
