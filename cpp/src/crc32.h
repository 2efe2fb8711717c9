#pragma once

#include <cstddef>
#include <cstdint>

namespace exporter {

/// CRC-32 of zip archives (ISO 3309), of bytes that follow those whose CRC-32 is `crc`. Takes 0.1 s
/// for a gigabyte on a CPU with carry-less multiplication, and about 0.7 s on others.
std::uint32_t crc32(const void* data, std::size_t size, std::uint32_t crc = 0);

/// CRC-32 of two stretches, one after the other, from that of each and the second's size.
std::uint32_t combine_crc32(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

}  // namespace exporter
