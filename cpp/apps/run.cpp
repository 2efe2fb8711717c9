#include <exporter/golden.h>

#include "commands.h"

namespace exporter::app {

int run(const Options& options) {
  const Artifact artifact = Artifact::open(options.artifact, options.open);
  auto inputs = read_inputs(options.inputs, artifact.contract());
  write_outputs(options.outputs, artifact.run(std::move(inputs)), artifact.contract());
  return 0;
}

}  // namespace exporter::app
