// Opens an artifact, warms it up, runs it on example inputs, and prints the outputs' shapes.

#include <exporter/exporter.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const auto artifact = exporter::Artifact::open(argv[1]);
  artifact.warm_up();
  const auto& contract = artifact.contract();
  const auto outputs = artifact.run(contract.example_inputs());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::cout << contract.outputs.at(i).name << " " << outputs[i].sizes() << "\n";
  }
} catch (const exporter::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
