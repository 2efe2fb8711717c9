#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "file.h"

namespace exporter {

/// A member of a zip archive, as the archive's directory has it.
struct Member {
  std::string name;
  std::uint32_t crc;     ///< CRC-32 of what it holds
  std::uint64_t size;    ///< of what it holds
  std::uint64_t stored;  ///< bytes in the archive
  std::uint64_t offset;  ///< where they begin
  bool compressed;
};

/// The directory of a zip archive, the large form (zip64) too. Throws std::runtime_error where it
/// is broken, a member lies outside the file, or is called otherwise in its own header.
std::vector<Member> read_directory(const File& file);

}  // namespace exporter
