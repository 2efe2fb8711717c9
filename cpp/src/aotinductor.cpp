#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

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

class AotInductorRunner final : public Runner {
 public:
  AotInductorRunner(const std::filesystem::path& path, at::Device device) {
    const std::lock_guard lock(loading());
    loader_ = std::make_unique<AOTIModelPackageLoader>(path.string(), "model",
                                                       /*run_single_threaded=*/false,
                                                       /*num_runners=*/1, device.index());
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    return loader_->boxed_run(std::move(inputs));
  }

 private:
  std::unique_ptr<AOTIModelPackageLoader> loader_;
};

}  // namespace

std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device) {
  return std::make_unique<AotInductorRunner>(path, device);
}

}  // namespace exporter
