// Runs a file that torch.export.save wrote, on zeros, without Python.

#include <exporter/exporter.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const auto program = exporter::Artifact::open(argv[1]);
  // Example inputs have the sizes that the program was exported with.
  const auto outputs = program.run(program.contract().example_inputs());
  for (const auto& output : outputs) std::cout << output.sizes() << "\n";
} catch (const exporter::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
