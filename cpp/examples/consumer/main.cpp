// Opens an artifact, makes inputs that fit its contract, runs it, and prints the outputs' shapes.

#include <ATen/ATen.h>
#include <exporter/artifact.h>
#include <exporter/error.h>

#include <iostream>

/// The smallest size that a symbol may have.
std::int64_t smallest(const exporter::Symbol& symbol) {
  if (!symbol.choices.empty()) return symbol.choices.front();
  return (symbol.min + symbol.multiple_of - 1) / symbol.multiple_of * symbol.multiple_of;
}

/// Zeros, with every dimension that may vary at its smallest size.
at::Tensor example(const exporter::TensorSpec& spec, const exporter::Contract& contract) {
  std::vector<std::int64_t> sizes;
  for (const auto& dimension : spec.shape) {
    const auto* fixed = std::get_if<exporter::FixedSize>(&dimension);
    const auto* symbol = std::get_if<exporter::SymbolSize>(&dimension);
    const auto* derived = std::get_if<exporter::Expression>(&dimension);
    sizes.push_back(fixed     ? fixed->size
                    : symbol  ? smallest(contract.symbols[symbol->symbol])
                    : derived ? derived->at(smallest(contract.symbols[derived->symbol]))
                              : 1);
  }
  return at::zeros(sizes, spec.dtype);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto artifact = exporter::Artifact::open(argv[1]);
    const auto& contract = artifact.contract();
    std::vector<at::Tensor> inputs;
    for (const auto& spec : contract.inputs) inputs.push_back(example(spec, contract));
    const auto outputs = artifact.run(inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      std::cout << contract.outputs.at(i).name << " " << outputs[i].sizes() << "\n";
    }
  } catch (const exporter::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
