#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "file.h"

namespace exporter {

/// A member of a zip archive, as listed in the archive's directory.
struct Member {
  std::string name;
  std::uint32_t crc;     ///< CRC-32 of the uncompressed bytes
  std::uint64_t size;    ///< number of uncompressed bytes
  std::uint64_t stored;  ///< number of bytes in the archive
  std::uint64_t offset;  ///< of the stored bytes in the archive
  bool compressed;
};

/// Reads the directory of a zip archive, including zip64. Throws std::runtime_error if it is
/// broken, or if a member lies outside the file or has another name in its own header.
std::vector<Member> read_directory(const File& file);

}  // namespace exporter
