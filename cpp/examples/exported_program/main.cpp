// Runs a file that torch.export.save wrote, on zeros, without Python.

#include <exporter/exporter.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const auto program = exporter::Artifact::open(argv[1]);
  const auto& contract = program.contract();  // from the program's signature
  exporter::Sizes sizes;
  for (const auto& symbol : contract.symbols)
    sizes[symbol.name] = symbol.allows(2) ? 2 : symbol.min;
  const auto outputs = program.run(contract.example_inputs(sizes));
  for (const auto& output : outputs) std::cout << output.sizes() << "\n";
} catch (const exporter::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
