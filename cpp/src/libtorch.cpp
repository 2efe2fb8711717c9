#include "libtorch.h"

#include <link.h>

namespace exporter {

std::filesystem::path libtorch_directory() {
  // Searches the loaded libraries. The address of a symbol of c10 would not do: it may be in the
  // program itself, which has its own copy of some symbols.
  std::filesystem::path found;
  const auto look = [](dl_phdr_info* info, std::size_t, void* answer) {
    const std::filesystem::path file = info->dlpi_name;
    if (file.filename() != "libc10.so") return 0;
    *static_cast<std::filesystem::path*>(answer) = file.parent_path();
    return 1;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

}  // namespace exporter
