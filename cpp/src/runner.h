#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/contract.h>

#include <filesystem>
#include <memory>
#include <vector>

namespace exporter {

/// What runs a model: one class for each kind of artifact. Inputs have been checked, are contiguous
/// and on the right device. Throws whatever torch throws.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;
};

std::unique_ptr<Runner> load_torchscript(const std::filesystem::path& path, at::Device device);
std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device,
                                         const Contract& contract);

}  // namespace exporter
