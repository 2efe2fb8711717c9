// Fuzzes the safetensors reader, with goldens and saved inputs.

#include <exporter/error.h>
#include <exporter/golden.h>

#include <vector>

#include "memory_file.h"

namespace {

void use(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.clone();
}

void use(const exporter::Golden& golden) {
  for (const exporter::GoldenCase& one : golden.cases) {
    use(one.inputs);
    use(one.eager);
    use(one.reference);
    if (one.step && *one.step < 0) __builtin_trap();
  }
}

/// Returns a contract that fits inputs.safetensors of the fixtures.
exporter::Contract contract() {
  exporter::Contract made;
  made.inputs = {{"tokens", at::kLong, {exporter::AnySize{}, exporter::FixedSize{6}}},
                 {"scale", at::kFloat, {exporter::AnySize{}, exporter::FixedSize{4}}}};
  return made;
}

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
  static const exporter::Contract its_contract = contract();
  file.assign(data, size);
  for (const char* precision : {"fp32", "bf16"}) {
    attempt([&] { use(exporter::Golden::read(file.path(), precision)); });
  }
  attempt([&] { use(exporter::read_inputs(file.path(), its_contract)); });
  return 0;
}
