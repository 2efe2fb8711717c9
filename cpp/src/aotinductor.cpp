#include <exporter/error.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <semaphore>

#include "runner.h"

namespace exporter {
namespace {

using torch::inductor::AOTIModelPackageLoader;

/// Loaders that are constructed at the same time race (pytorch/pytorch#194128).
std::mutex& loading() {
  static std::mutex mutex;
  return mutex;
}

/// A loaded model. Calls wait here for a runner, not in torch, where one that waits is not told
/// when the call before it fails, and may wait for ever.
class Loader {
 public:
  Loader(const std::string& path, const std::string& model, bool serial, int runners,
         at::Device device)
      : loader_(path, model, serial, static_cast<std::size_t>(runners), device.index()),
        free_(runners) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    free_.acquire();
    const std::unique_ptr<Runners, void (*)(Runners*)> taken(
        &free_, [](Runners* runners) { runners->release(); });
    return loader_.boxed_run(std::move(inputs));
  }

 private:
  using Runners = std::counting_semaphore<>;

  AOTIModelPackageLoader loader_;
  Runners free_;
};

/// How a package is loaded.
struct Loading {
  std::filesystem::path path;
  at::Device device;
  bool serial;
  int runners;

  std::unique_ptr<Loader> load(const std::string& model) const {
    const std::lock_guard lock(loading());
    return std::make_unique<Loader>(path.string(), model, serial, runners, device);
  }
};

class AotInductorRunner final : public Runner {
 public:
  explicit AotInductorRunner(std::unique_ptr<Loader> loader) : loader_(std::move(loader)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    return loader_->run(std::move(inputs));
  }

 private:
  std::unique_ptr<Loader> loader_;
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
    return loaders_.at(size)->run(std::move(inputs));
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
  std::map<std::int64_t, std::unique_ptr<Loader>> loaders_;
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
