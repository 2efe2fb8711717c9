// A file as it stands: an artifact's directory and contract, a golden, saved inputs.

#include <exporter/artifact.h>
#include <exporter/error.h>
#include <exporter/golden.h>

#include "memory_file.h"

namespace {

template <typename Action>
void attempt(Action&& action) {
  try {
    action();
  } catch (const exporter::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  file.assign(data, size);
  attempt([] { exporter::inspect(file.path()); });
  attempt([] { exporter::Golden::read(file.path()); });
  attempt([] { exporter::read_inputs(file.path(), exporter::Contract{}); });
  return 0;
}
