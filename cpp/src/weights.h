#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "zip.h"

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace exporter {

/// The weights of a model in a compiled package, where they are in the archive: mapped, private to
/// the process, copied page by page if calls write to them. Older packages contain their weights in
/// the library.
class Weights {
  class Region;

 public:
  /// The bytes of a package's blobs, by the names of their members. Models that share weights use
  /// the same ones.
  using Regions = std::map<std::string, std::shared_ptr<const Region>>;

  /// Maps the weights, or copies them into huge pages, unless they are among the `regions`, to
  /// which new ones are added. Returns nullptr if the library contains them. Throws std::exception
  /// if the index of the weights is broken.
  static std::unique_ptr<Weights> map(const std::filesystem::path& package,
                                      const std::string& model, bool huge_pages, Regions& regions);

  /// The model must be destroyed before.
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  /// Makes these the constants of the model, without a copy. Throws std::exception if one is
  /// missing. May be called once.
  void give_to(torch::inductor::AOTIModelContainerRunner& model);

 private:
  Weights() = default;

  std::vector<std::shared_ptr<const Region>> regions_;
  std::unordered_map<std::string, at::Tensor> tensors_;
  std::vector<std::pair<at::Tensor, AtenTensorHandle>> given_;
};

/// Returns whether a member of a package is weights that `Weights` maps, so that they need not be
/// unpacked.
bool is_mapped(const Member& member, const std::vector<Member>& members);

}  // namespace exporter
