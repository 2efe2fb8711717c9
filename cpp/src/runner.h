#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/artifact.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace exporter {

/// What runs a model: one class for each kind of artifact. Inputs have been checked, are contiguous
/// and on the right device. Throws whatever torch throws.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;

  /// Restores the initial state of a model that keeps one.
  virtual void reset() {}

  /// How it runs, where that is worth a word.
  virtual std::string execution_mode() const { return {}; }
};

/// `keeps_state` modules have a method `reset`.
std::unique_ptr<Runner> load_torchscript(const std::filesystem::path& path, at::Device device,
                                         bool keeps_state);

/// `serial` packages serve one call at a time, and can be captured into CUDA graphs.
std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device,
                                         const Contract& contract, bool serial, int runners);

/// The runner of a file, by its kind.
std::unique_ptr<Runner> load_runner(const std::filesystem::path& path, const ArtifactInfo& info,
                                    at::Device device, bool serial, int runners);

/// An artifact of what was loaded otherwise than by `Artifact::open`.
Artifact artifact_of(std::filesystem::path path, ArtifactInfo info, at::Device device,
                     std::unique_ptr<Runner> runner);

}  // namespace exporter
