// Sections and headers: elf(5).

#include "library.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "file.h"

namespace exporter {
namespace {

/// Returns the byte ranges of the weights in a library: sections for large data, and data appended
/// to the file.
std::vector<std::pair<std::uint64_t, std::uint64_t>> find_weights(const File& library) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  Elf64_Ehdr header{};
  if (library.size() < sizeof header) return found;
  library.read(&header, sizeof header, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) {
    return found;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  library.read(sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff);
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  std::uint64_t end = header.e_shoff + sections.size() * sizeof(Elf64_Shdr);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NOBITS || section.sh_size == 0) continue;
    end = std::max(end, section.sh_offset + section.sh_size);
    char name[9] = {};
    if (names.sh_offset + section.sh_name + sizeof name > library.size()) continue;
    library.read(name, sizeof name, names.sh_offset + section.sh_name);
    const std::string_view text(name, sizeof name);
    if (text == std::string_view(".lrodata\0", 9) ||
        text.starts_with(std::string_view(".ldata\0", 7))) {
      found.emplace_back(section.sh_offset, section.sh_size);
    }
  }
  if (end < library.size()) found.emplace_back(end, library.size() - end);
  return found;
}

}  // namespace

void drop_weights(int library) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (const auto& [offset, size] :
       find_weights(File("/proc/self/fd/" + std::to_string(library)))) {
    const std::uint64_t from = (offset + page - 1) / page * page;
    const std::uint64_t to = (offset + size) / page * page;
    if (from >= to) continue;
    // A file system without support for holes keeps the weights.
    fallocate(library, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
              static_cast<off_t>(to - from));
  }
}

}  // namespace exporter
