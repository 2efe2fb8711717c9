#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace exporter {

/// A file opened for reading. Several threads may read it at once.
class File {
 public:
  /// Throws std::system_error if the file cannot be opened, std::runtime_error if it is not a
  /// regular file.
  explicit File(const std::filesystem::path& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t size() const noexcept { return size_; }

  /// Reads exactly `size` bytes. Throws std::system_error if reading fails, std::runtime_error if
  /// the file ends first.
  void read(void* data, std::size_t size, std::uint64_t offset) const;

 private:
  int descriptor_;
  std::uint64_t size_ = 0;
};

}  // namespace exporter
