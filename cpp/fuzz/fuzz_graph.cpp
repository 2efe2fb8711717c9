// Fuzzes the graph of an exported program, as JSON: it is read and prepared, with empty weights.

#include <ATen/ops/empty.h>

#include <cstdint>
#include <exception>
#include <string_view>

#include "program/guards.h"
#include "program/instructions.h"

using namespace exporter::program;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const SavedProgram saved = parse_program({reinterpret_cast<const char*>(data), size});
    std::vector<std::string> inputs;
    std::map<std::string, c10::IValue> weights;
    for (const InputSpec& input : saved.inputs) {
      if (input.kind == InputKind::user) {
        inputs.push_back(input.name);
      } else {
        weights.emplace(input.name, at::empty({0}));
      }
    }
    Context context;
    prepare_graph(saved.graph, inputs, weights, context);
    for (const std::string& guard : saved.guards) Guard(guard, inputs);
  } catch (const std::exception&) {
  }
  return 0;
}
