// Uses carry-less multiplication if the CPU has it: V. Gopal et al., Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009. Other CPUs use eight tables. CRCs
// of consecutive blocks are combined as in zlib, by multiplying with powers of x modulo the
// polynomial.

#include "crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace exporter {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // bits reversed

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t table = 1; table < tables.size(); ++table) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[table - 1][byte];
      tables[table][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

/// Returns the state after `data`. Here and below, a state is the complement of a CRC-32.
std::uint32_t update_by_tables(std::uint32_t state, const unsigned char* data, std::size_t size) {
  static_assert(std::endian::native == std::endian::little, "eight bytes are read as one number");
  for (; size >= 8; data += 8, size -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, 8);
    word ^= state;
    state = 0;
    for (int i = 0; i < 8; ++i) {
      state ^= kTables[static_cast<std::size_t>(7 - i)][word >> (8 * i) & 0xff];
    }
  }
  for (; size > 0; ++data, --size) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xff];
  return state;
}

#if defined(__x86_64__)
#define EXPORTER_CLMUL __attribute__((target("pclmul,sse4.1")))

EXPORTER_CLMUL __m128i load(const unsigned char* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

/// Shifts 128 bits by the distance that the two powers in `by` encode, and adds `next`.
EXPORTER_CLMUL __m128i fold(__m128i bits, __m128i by, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(bits, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(bits, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// Like `update_by_tables`; `size` must be a multiple of 16 and at least 64.
EXPORTER_CLMUL std::uint32_t update_by_clmul(std::uint32_t state, const unsigned char* data,
                                             std::size_t size) {
  const __m128i by_64_bytes = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by_16_bytes = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  __m128i lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = load(data + 16 * i);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
    for (int i = 0; i < 4; ++i) lanes[i] = fold(lanes[i], by_64_bytes, load(data + 16 * i));
  }
  __m128i rest = lanes[0];
  for (int i = 1; i < 4; ++i) rest = fold(rest, by_16_bytes, lanes[i]);
  for (; size >= 16; data += 16, size -= 16) rest = fold(rest, by_16_bytes, load(data));
  // Reduces 128 bits to 64, and those to 32 with Barrett's reduction.
  const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
  rest = _mm_xor_si128(_mm_srli_si128(rest, 8), _mm_clmulepi64_si128(rest, by_16_bytes, 0x10));
  rest = _mm_xor_si128(
      _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), _mm_set_epi64x(0, 0x0163cd6124), 0x00),
      _mm_srli_si128(rest, 4));
  const __m128i reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), reduction, 0x10);
  quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_words), reduction, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(rest, quotient), 1));
}

bool has_clmul() {
  static const bool has = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return has;
}
#endif

/// Returns the product of two polynomials modulo the CRC's polynomial.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

std::uint32_t crc32(const void* data, std::size_t size, std::uint32_t crc) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint32_t state = ~crc;
#if defined(__x86_64__)
  if (size >= 64 && has_clmul()) {
    const std::size_t most = size / 16 * 16;
    state = update_by_clmul(state, bytes, most);
    bytes += most;
    size -= most;
  }
#endif
  return ~update_by_tables(state, bytes, size);
}

std::uint32_t combine_crc32(std::uint32_t first, std::uint32_t second, std::uint64_t second_size) {
  std::uint32_t power = 1u << 23;  // x to the 8: one byte
  for (; second_size != 0; second_size >>= 1) {
    if ((second_size & 1) != 0) first = multiply(power, first);
    power = multiply(power, power);
  }
  return first ^ second;
}

}  // namespace exporter
