// Fuzzes the reader of exported programs: an archive is opened, with its graph and weights.

#include <exporter/artifact.h>
#include <exporter/error.h>

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  file.assign(data, size);
  try {
    // Other kinds hold code.
    if (exporter::inspect(file.path()).kind == exporter::ArtifactKind::exported_program) {
      exporter::Artifact::open(file.path());
    }
  } catch (const exporter::Error&) {
  }
  return 0;
}
