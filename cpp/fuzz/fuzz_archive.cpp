// Fuzzes the archive reader: an artifact's directory and contract.

#include <exporter/artifact.h>
#include <exporter/error.h>

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  file.assign(data, size);
  try {
    exporter::inspect(file.path());
  } catch (const exporter::Error&) {
  }
  return 0;
}
