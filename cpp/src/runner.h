#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/artifact.h>
#include <exporter/profile.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

/// Runs a model. There is one class for each kind of artifact. Inputs must be checked, contiguous
/// and on the right device. Passes on torch's exceptions.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;

  /// Runs the model and appends a record of each node to `nodes`. Returns nothing if the artifact
  /// has no nodes. Like all of this class, it is defined here, for libexporter_cuda.so.
  virtual std::optional<std::vector<at::Tensor>> profile(std::vector<at::Tensor> /*inputs*/,
                                                         std::vector<NodeProfile>& /*nodes*/) {
    return std::nullopt;
  }

  /// Restores the initial state, if the model keeps its state.
  virtual void reset() {}

  /// The positions of the inputs that a call writes to, as an exported program may.
  virtual std::vector<std::size_t> written_inputs() const { return {}; }

  /// Returns how the model runs, such as "CUDA graph"; see Artifact::execution_mode.
  virtual std::string execution_mode() const { return {}; }
};

/// Loads a TorchScript file. With `keeps_state`, the module must have a method `reset`.
std::unique_ptr<Runner> load_torchscript(const std::filesystem::path& path, at::Device device,
                                         bool keeps_state);

/// Loads a compiled package. A `serial` one serves one call at a time and can be captured into CUDA
/// graphs. For `huge_pages`, see OpenOptions.
std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device,
                                         const Contract& contract, bool serial, int runners,
                                         bool huge_pages);

/// Loads an exported program. Throws std::runtime_error that names every operator that cannot run
/// here. Without `has_contract`, conditions that torch.export found are checked at each call.
std::unique_ptr<Runner> load_exported_program(const std::filesystem::path& path, at::Device device,
                                              const Contract& contract, bool has_contract);

/// Makes the contract of an exported program that carries none, from its signature.
Contract read_program_contract(const std::filesystem::path& path);

/// Loads the runner for an artifact of any kind.
std::unique_ptr<Runner> load_runner(const std::filesystem::path& path, const ArtifactInfo& info,
                                    at::Device device, bool serial, int runners,
                                    bool huge_pages = false);

/// Makes an artifact from a runner that was not loaded by `Artifact::open`.
Artifact artifact_of(std::filesystem::path path, ArtifactInfo info, at::Device device,
                     std::unique_ptr<Runner> runner);

}  // namespace exporter
