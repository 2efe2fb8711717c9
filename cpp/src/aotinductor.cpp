#include <exporter/error.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runner.h"

namespace exporter {
namespace {

using torch::inductor::AOTIModelPackageLoader;

/// Loaders that are constructed at the same time race (pytorch/pytorch#194128).
std::mutex& loading() {
  static std::mutex mutex;
  return mutex;
}

using Loader = std::unique_ptr<AOTIModelPackageLoader>;

/// How a package is loaded.
struct Loading {
  std::filesystem::path path;
  at::Device device;
  bool serial;
  int runners;

  Loader load(const std::string& model) const {
    const std::lock_guard lock(loading());
    return std::make_unique<AOTIModelPackageLoader>(
        path.string(), model, serial, static_cast<std::size_t>(runners), device.index());
  }
};

class AotInductorRunner final : public Runner {
 public:
  explicit AotInductorRunner(Loader loader) : loader_(std::move(loader)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    return loader_->boxed_run(std::move(inputs));
  }

 private:
  Loader loader_;
};

/// A package with a model for each size of one symbol. The contract has seen to it that there is
/// one for every call.
class EntriesRunner final : public Runner {
 public:
  EntriesRunner(const Loading& package, const Contract& contract, std::size_t symbol) {
    find_selector(contract, symbol);
    for (const std::int64_t size : contract.symbols[symbol].choices) {
      loaders_.emplace(size, package.load("entry_" + std::to_string(size)));
    }
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    const auto size = inputs.at(input_).size(dimension_);
    return loaders_.at(size)->boxed_run(std::move(inputs));
  }

 private:
  void find_selector(const Contract& contract, std::size_t symbol) {
    for (std::size_t i = 0; i < contract.inputs.size(); ++i) {
      const auto& shape = contract.inputs[i].shape;
      const auto found = std::find_if(shape.begin(), shape.end(), [&](const Dimension& dimension) {
        const auto* index = std::get_if<std::size_t>(&dimension);
        return index != nullptr && *index == symbol;
      });
      if (found == shape.end()) continue;
      input_ = i;
      dimension_ = found - shape.begin();
      return;
    }
    throw Error(ErrorKind::artifact,
                "no input has the dimension " + contract.symbols[symbol].name + " itself");
  }

  std::size_t input_ = 0;
  std::int64_t dimension_ = 0;
  std::map<std::int64_t, Loader> loaders_;
};

}  // namespace

std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device,
                                         const Contract& contract, bool serial, int runners) {
  const Loading package{path, device, serial, runners};
  for (std::size_t symbol = 0; symbol < contract.symbols.size(); ++symbol) {
    if (contract.symbols[symbol].choices.empty()) continue;
    return std::make_unique<EntriesRunner>(package, contract, symbol);
  }
  return std::make_unique<AotInductorRunner>(package.load("model"));
}

}  // namespace exporter
