#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

/// A file in memory, for readers that take a path. Its contents are replaced for each input.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("fuzz", 0)) {
    if (file_ < 0) std::abort();
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void assign(const void* data, std::size_t size) {
    if (ftruncate(file_, 0) != 0) std::abort();
    if (pwrite(file_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  }

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};
