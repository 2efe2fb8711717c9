#include <exporter/error.h>
#include <exporter/golden.h>
#include <exporter/stream.h>

#include <filesystem>
#include <system_error>

#include "commands.h"

namespace exporter::app {
namespace {

/// Returns the contract as seen by a caller of a stream, which handles the state.
Contract without_state(Contract contract) {
  contract.inputs.resize(contract.own_inputs());
  contract.outputs.resize(contract.own_outputs());
  contract.state.reset();
  return contract;
}

/// Makes one call per input file. Writes the outputs of all calls, with the call's number before
/// each name.
void run_stream(const Artifact& artifact, const Options& options) {
  const Contract one = without_state(artifact.contract());
  Stream stream = artifact.stream();
  Contract all = one;
  all.outputs.clear();
  std::vector<at::Tensor> results;
  for (std::size_t call = 0; call < options.inputs.size(); ++call) {
    for (at::Tensor& output : stream.run(read_inputs(options.inputs[call], one))) {
      results.push_back(std::move(output));
    }
    for (TensorSpec spec : one.outputs) {
      spec.name = std::to_string(call) + "." + spec.name;
      all.outputs.push_back(std::move(spec));
    }
  }
  write_outputs(options.outputs, results, all);
}

/// Throws Error if the outputs would replace a file that the command reads.
void require_other_file(const Options& options) {
  const auto require = [&](const std::filesystem::path& file, const std::string& what) {
    std::error_code missing;
    if (std::filesystem::equivalent(file, options.outputs, missing)) {
      throw Error(ErrorKind::usage, "--outputs " + options.outputs.string() + " is " + what +
                                        " and would be replaced: choose another file");
    }
  };
  for (const auto& file : options.inputs) require(file, "also given as --inputs");
  require(options.artifact, "the artifact");
}

}  // namespace

int run(const Options& options) {
  require_other_file(options);
  const Artifact artifact = Artifact::open(options.artifact, options.open);
  if (options.inputs.size() > 1) {
    run_stream(artifact, options);
    return 0;
  }
  auto inputs = read_inputs(options.inputs.front(), artifact.contract());
  write_outputs(options.outputs, artifact.run(std::move(inputs)), artifact.contract());
  return 0;
}

}  // namespace exporter::app
