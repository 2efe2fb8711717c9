#include <exporter/contract.h>
#include <exporter/error.h>

namespace exporter {
namespace {

constexpr std::size_t kUnset = static_cast<std::size_t>(-1);

/// The size of a symbol in one call, and the input that gave it.
struct Binding {
  std::int64_t size = 0;
  std::size_t input = kUnset;
};

using Bindings = std::vector<Binding>;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::contract, message); }

std::string at_dimension(const TensorSpec& spec, std::size_t dimension) {
  return spec.name + " dim " + std::to_string(dimension);
}

[[noreturn]] void refuse_count(const Contract& contract, std::size_t given) {
  std::string names;
  for (const TensorSpec& spec : contract.inputs) names += (names.empty() ? "" : ", ") + spec.name;
  refuse(std::to_string(given) + " inputs given, the contract has " +
         std::to_string(contract.inputs.size()) + ": " + names);
}

void check_fixed(const TensorSpec& spec, std::size_t dimension, std::int64_t want,
                 std::int64_t got) {
  if (got == want) return;
  refuse(at_dimension(spec, dimension) + " is " + std::to_string(got) + ", the contract wants " +
         std::to_string(want));
}

void check_symbol(const Contract& contract, std::size_t input, std::size_t dimension,
                  std::size_t index, std::int64_t got, Bindings& bindings) {
  const Symbol& symbol = contract.symbols[index];
  const TensorSpec& spec = contract.inputs[input];
  Binding& binding = bindings[index];
  if (binding.input == kUnset) {
    if (got < symbol.min || got > symbol.max) {
      refuse(at_dimension(spec, dimension) + ": " + symbol.name + " is " + std::to_string(got) +
             ", the contract allows " + std::to_string(symbol.min) + ".." +
             std::to_string(symbol.max));
    }
    binding = {got, input};
  } else if (binding.size != got) {
    refuse(at_dimension(spec, dimension) + " is " + std::to_string(got) + " but " + symbol.name +
           " is " + std::to_string(binding.size) + " (from " + contract.inputs[binding.input].name +
           ")");
  }
}

void check_input(const Contract& contract, std::size_t input, const at::Tensor& tensor,
                 Bindings& bindings) {
  const TensorSpec& spec = contract.inputs[input];
  if (!tensor.defined()) refuse(spec.name + ": no tensor given");
  if (tensor.scalar_type() != spec.dtype) {
    refuse(spec.name + ": dtype " + dtype_name(tensor.scalar_type()) + ", the contract wants " +
           dtype_name(spec.dtype));
  }
  const auto sizes = tensor.sizes();
  if (sizes.size() != spec.shape.size()) {
    refuse(spec.name + ": " + std::to_string(sizes.size()) + " dimensions, the contract wants " +
           std::to_string(spec.shape.size()));
  }
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (const auto* fixed = std::get_if<std::int64_t>(&spec.shape[d])) {
      check_fixed(spec, d, *fixed, sizes[d]);
    } else if (const auto* symbol = std::get_if<std::size_t>(&spec.shape[d])) {
      check_symbol(contract, input, d, *symbol, sizes[d], bindings);
    }
  }
}

}  // namespace

void Contract::check(std::span<const at::Tensor> given) const {
  if (given.size() != inputs.size()) refuse_count(*this, given.size());
  Bindings bindings(symbols.size());
  for (std::size_t i = 0; i < given.size(); ++i) check_input(*this, i, given[i], bindings);
}

std::string describe_shape(const TensorSpec& spec, const Contract& contract) {
  std::string text = "[";
  for (const Dimension& dimension : spec.shape) {
    if (text.size() > 1) text += ", ";
    if (const auto* fixed = std::get_if<std::int64_t>(&dimension)) {
      text += std::to_string(*fixed);
    } else if (const auto* symbol = std::get_if<std::size_t>(&dimension)) {
      text += contract.symbols[*symbol].name;
    } else {
      text += "?";
    }
  }
  return text + "]";
}

}  // namespace exporter
