#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace exporter {

/// Computes the SHA-256 (FIPS 180-4) of the bytes added. A gigabyte takes 0.5 s on a CPU with SHA
/// extensions, and several times that on others.
class Sha256 {
 public:
  void add(const void* data, std::size_t size);

  /// Returns 64 lower-case hexadecimal digits. Call it once, after the last `add`.
  std::string finish();

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};  // the bytes of an incomplete block
  std::size_t held_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace exporter
