// Measures how many products of bytes a second these cores reach with AVX512-VNNI, without reading memory:
//     g++ -O2 -march=native -fopenmp benchmarks/vnni_peak.cpp -o build/vnni_peak && OMP_NUM_THREADS=2 build/vnni_peak
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

int main() {
  constexpr int kSums = 16, kProducts = 64;  // independent accumulators, and products of an instruction
  constexpr long kRounds = 2'500'000;
  double best = 0;
  for (int again = 0; again < 5; ++again) {
    const auto start = std::chrono::steady_clock::now();
    long threads = 0;
#pragma omp parallel reduction(+ : threads)
    {
      threads = 1;
      const __m512i x = _mm512_set1_epi32(3), y = _mm512_set1_epi32(5);
      __m512i sums[kSums];
#pragma GCC unroll 16
      for (int n = 0; n < kSums; ++n) sums[n] = _mm512_set1_epi32(n);
      for (long i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
        for (int n = 0; n < kSums; ++n) {
          sums[n] = _mm512_dpbusd_epi32(sums[n], x, y);
          asm volatile("" : "+v"(sums[n]));  // keeps the compiler from simplifying the sum
        }
      }
      volatile int kept = 0;
#pragma GCC unroll 16
      for (int n = 0; n < kSums; ++n) kept = kept + _mm512_reduce_add_epi32(sums[n]);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(threads * kRounds * kSums * kProducts) / spent.count());
  }
  std::printf("%.0f billion products of bytes a second\n", best / 1e9);
}
