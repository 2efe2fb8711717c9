#include "stand_in.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

// The bytes of the empty library that CMake builds from empty.cpp. They are embedded so that the
// library needs no file, which could be missing or be found by other programs.
asm(R"(
  .pushsection .rodata
  .hidden exporter_stand_in, exporter_stand_in_end
  .global exporter_stand_in, exporter_stand_in_end
exporter_stand_in:
  .incbin ")" EXPORTER_STAND_IN R"("
exporter_stand_in_end:
  .popsection
)");
extern "C" const char exporter_stand_in[];
extern "C" const char exporter_stand_in_end[];

namespace exporter {

void stand_in_for_libtorch_python() {
  if (dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr) return;
  const int file = memfd_create("libtorch_python.so", MFD_CLOEXEC);
  if (file < 0) return;
  const auto size = static_cast<std::size_t>(exporter_stand_in_end - exporter_stand_in);
  if (write(file, exporter_stand_in, size) == static_cast<ssize_t>(size)) {
    // If this fails, loading the library that needs the name reports it.
    dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW);
  }
  close(file);
}

}  // namespace exporter
