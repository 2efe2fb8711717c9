#include "pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace exporter {
namespace {

constexpr std::uintptr_t kHugePage = 2 << 20;
constexpr std::uintptr_t kLeast = 2 * kHugePage;  // of a mapping that is worth it
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; older headers lack it
#endif

/// One entry of /proc/self/smaps.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool anonymous = false;  ///< memory of this process alone, that it may write
  std::uintptr_t resident = 0;
  std::uintptr_t huge = 0;  ///< bytes of it on huge pages already
};

/// Takes the first line of an entry; false for any other line.
bool read_heading(const std::string& line, Mapping& mapping) {
  unsigned long begin = 0;
  unsigned long end = 0;
  unsigned long inode = 0;
  char modes[5] = {};
  if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*s %lu", &begin, &end, modes, &inode) != 4) {
    return false;
  }
  const bool stack = line.find("[stack]") != std::string::npos;
  mapping = {begin, end, std::string(modes) == "rw-p" && inode == 0 && !stack};
  return true;
}

void advise(const Mapping& mapping) {
  const std::uintptr_t size = mapping.end - mapping.begin;
  // What is mostly untouched, as a thread's stack, would only grow.
  if (!mapping.anonymous || size < kLeast || mapping.resident < size - size / 8) return;
  if (mapping.huge >= size - kLeast) return;
  const auto begin = (mapping.begin + kHugePage - 1) / kHugePage * kHugePage;
  const auto whole = mapping.end / kHugePage * kHugePage - begin;
  auto* const start = reinterpret_cast<void*>(begin);
  // Both may be refused; then everything stays as it is.
  if (madvise(start, whole, MADV_HUGEPAGE) == 0) madvise(start, whole, kCollapse);
}

}  // namespace

void use_huge_pages() {
  std::ifstream entries("/proc/self/smaps");
  Mapping current;
  unsigned long kilobytes = 0;
  for (std::string line; std::getline(entries, line);) {
    if (std::sscanf(line.c_str(), "Rss: %lu kB", &kilobytes) == 1) {
      current.resident = kilobytes * 1024;
    } else if (std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kilobytes) == 1) {
      current.huge = kilobytes * 1024;
      advise(current);
    } else {
      read_heading(line, current);
    }
  }
}

}  // namespace exporter
