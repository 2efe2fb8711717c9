#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace exporter {

/// A file that is open for reading, by one thread or many.
class File {
 public:
  /// Throws std::system_error when it cannot be opened, also for a pipe or a folder.
  explicit File(const std::filesystem::path& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t size() const noexcept { return size_; }

  /// Reads all of `size` bytes. Throws std::system_error, and std::runtime_error at the file's end.
  void read(void* data, std::size_t size, std::uint64_t offset) const;

 private:
  int descriptor_;
  std::uint64_t size_ = 0;
};

}  // namespace exporter
