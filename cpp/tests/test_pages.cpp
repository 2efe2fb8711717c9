#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "../src/pages.h"
#include "testing.h"

namespace {

constexpr std::size_t kSize = 64 << 20;

/// Fresh memory of this process, whole only where it was `touched`.
char* map(bool touched) {
  void* const start =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) std::abort();
  if (touched) std::memset(start, 7, kSize);
  return static_cast<char*>(start);
}

/// A value in MB of this process's memory, such as AnonHugePages.
std::size_t megabytes(const std::string& name) {
  std::ifstream values("/proc/self/smaps_rollup");
  for (std::string line; std::getline(values, line);) {
    if (line.starts_with(name + ":")) return std::stoul(line.substr(name.size() + 1)) / 1024;
  }
  return 0;
}

/// Whether this system gives huge pages at once to who asks for them.
bool gives() {
  char* const start = map(true);
  const bool given = madvise(start, kSize, MADV_HUGEPAGE) == 0 && madvise(start, kSize, 25) == 0;
  munmap(start, kSize);
  return given;
}

void moves_what_is_large() {
  char* const start = map(true);
  const auto before = megabytes("AnonHugePages");
  exporter::use_huge_pages();
  EXPECT(!gives() || megabytes("AnonHugePages") >= before + kSize / (2 << 20));
  for (std::size_t i = 0; i < kSize; i += 4096) EXPECT_EQUAL(start[i], 7);
  munmap(start, kSize);
}

void leaves_what_is_untouched() {
  char* const start = map(false);
  exporter::use_huge_pages();
  const auto before = megabytes("Rss");
  start[0] = 1;
  EXPECT(megabytes("Rss") < before + kSize / (2 << 20));
  munmap(start, kSize);
}

}  // namespace

int main() {
  return testing::run({{"moves what is large", moves_what_is_large},
                       {"leaves what is untouched", leaves_what_is_untouched}});
}
