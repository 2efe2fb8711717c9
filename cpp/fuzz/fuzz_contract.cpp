// Fuzzes the contract parser, and the functions of every contract that it accepts.

#include <ATen/ops/empty.h>
#include <exporter/contract.h>
#include <exporter/error.h>

#include <algorithm>
#include <span>
#include <vector>

namespace {

using exporter::Contract;

/// Returns one tensor for each input, with size 2 in every dimension.
std::vector<at::Tensor> tensors_for(const Contract& contract) {
  std::vector<at::Tensor> tensors;
  for (const auto& spec : contract.inputs) {
    std::vector<std::int64_t> sizes(std::min<std::size_t>(spec.shape.size(), 6), 2);
    tensors.push_back(at::empty(sizes, spec.dtype));
  }
  return tensors;
}

/// Returns whether the state fits into memory for the sizes of `tensors_for`.
bool is_small(const Contract& contract) {
  if (!contract.state) return true;
  for (const auto& tensor : contract.state->tensors) {
    std::int64_t count = 1;
    for (const auto& dimension : tensor.spec.shape) {
      const auto* fixed = std::get_if<exporter::FixedSize>(&dimension);
      const auto* expression = std::get_if<exporter::Expression>(&dimension);
      const std::int64_t size = fixed ? fixed->size : expression ? 1 << 20 : 2;
      if (size > 1000 || (count *= std::max<std::int64_t>(size, 1)) > 1'000'000) return false;
    }
  }
  return true;
}

void use(const Contract& contract) {
  for (const auto& spec : contract.inputs) exporter::describe_shape(spec, contract);
  for (const auto& spec : contract.outputs) exporter::describe_shape(spec, contract);
  for (const auto& symbol : contract.symbols) exporter::describe_range(symbol);
  const auto tensors = tensors_for(contract);
  if (is_small(contract)) {
    const auto own = std::span(tensors).first(contract.own_inputs());
    for (const at::Tensor& tensor : contract.initial_state(own)) tensor.clone();
  }
  contract.check(tensors);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(Contract::parse({reinterpret_cast<const char*>(data), size}, "fuzz"));
  } catch (const exporter::Error&) {
  }
  return 0;
}
