// The text of a contract, and what is done with one that can be read.

#include <ATen/ops/empty.h>
#include <exporter/contract.h>
#include <exporter/error.h>

#include <algorithm>
#include <vector>

namespace {

using exporter::Contract;

/// One tensor for each input, with 2 in every dimension that is not fixed.
std::vector<at::Tensor> tensors_for(const Contract& contract) {
  std::vector<at::Tensor> tensors;
  for (const auto& spec : contract.inputs) {
    std::vector<std::int64_t> sizes(std::min<std::size_t>(spec.shape.size(), 6), 2);
    tensors.push_back(at::empty(sizes, spec.dtype));
  }
  return tensors;
}

void use(const Contract& contract) {
  for (const auto& spec : contract.inputs) exporter::describe_shape(spec, contract);
  for (const auto& spec : contract.outputs) exporter::describe_shape(spec, contract);
  contract.check(tensors_for(contract));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(Contract::parse({reinterpret_cast<const char*>(data), size}, "fuzz"));
  } catch (const exporter::Error&) {
  }
  return 0;
}
