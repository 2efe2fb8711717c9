#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../zip.h"

namespace exporter::program {

class Mapping;

/// A parameter, buffer or constant: its values in the file, and the device it was saved from.
struct SavedTensor {
  at::Tensor tensor;  ///< on the CPU
  at::Device device = at::kCPU;
};

using SavedTensors = std::map<std::string, SavedTensor>;

/// The archive that torch.export.save writes, mapped into memory. Processes that map the same file
/// share its memory; a write to a tensor is private to the process.
class SavedFile {
 public:
  /// Throws std::runtime_error if the file is not such an archive, or holds several programs.
  explicit SavedFile(const std::filesystem::path& path);

  /// Returns the graph, as JSON. It is valid as long as this object.
  std::string_view graph() const;

  /// Returns the contract that exporter wrote, as JSON; nothing if another program wrote the file.
  std::optional<std::string_view> contract() const;

  /// Returns the parameters, buffers and constants by their names in the model. They keep the
  /// mapping alive. Throws std::runtime_error if one lies outside its member or needs Python.
  SavedTensors tensors() const;

 private:
  std::optional<std::string_view> find(const std::string& name) const;
  std::string_view require(const std::string& name) const;
  void read_tensors(const std::string& config, const std::string& folder,
                    SavedTensors& tensors) const;

  std::shared_ptr<const Mapping> mapping_;
  std::map<std::string, Member> members_;  ///< by name below the archive's top folder
  std::string model_;
};

}  // namespace exporter::program
