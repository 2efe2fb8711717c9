// Reads input files and writes output files.

#include <exporter/golden.h>

#include "archive.h"
#include "guard.h"
#include "safetensors.h"

namespace exporter {
namespace {

NamedTensors named(const std::vector<at::Tensor>& outputs, const Contract& contract) {
  NamedTensors tensors;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = contract.outputs[i].name;
    TORCH_CHECK(tensors.emplace(name, outputs[i]).second, "two outputs are named ", name);
  }
  return tensors;
}

}  // namespace

std::vector<at::Tensor> read_inputs(const std::filesystem::path& path, const Contract& contract) {
  require_file(path, ErrorKind::golden);
  SafeTensors file =
      guarded(ErrorKind::golden, path.string() + " cannot be read as a safetensors file of inputs",
              [&] { return read_safetensors(path); });
  try {
    return contract.arrange(std::move(file.tensors));
  } catch (const Error& error) {
    throw Error(error.kind(), path.string() + ": " + error.what());
  }
}

void write_outputs(const std::filesystem::path& path, const std::vector<at::Tensor>& outputs,
                   const Contract& contract) {
  if (outputs.size() != contract.outputs.size()) {
    throw Error(ErrorKind::contract, "the model returned " + std::to_string(outputs.size()) +
                                         " outputs, the contract has " +
                                         std::to_string(contract.outputs.size()));
  }
  guarded(ErrorKind::io, path.string() + " cannot be written",
          [&] { write_safetensors(path, named(outputs, contract)); });
}

}  // namespace exporter
