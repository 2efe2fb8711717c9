#include <exporter/error.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/headeronly/version.h>
#if __has_include(<torch/csrc/shim_exception_state.h>)
#include <torch/csrc/shim_exception_state.h>
#endif

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <semaphore>
#include <stdexcept>

#include "device.h"
#include "guard.h"
#include "runner.h"
#include "state.h"
#include "unpack.h"
#include "weights.h"

namespace exporter {
namespace {

using torch::inductor::AOTIModelPackageLoader;

/// Loaders that are constructed at the same time race (pytorch/pytorch#194128).
std::mutex& loading() {
  static std::mutex mutex;
  return mutex;
}

/// `known_cause` returns the message of the error that torch raised inside a package in this
/// thread, because the package itself reports only that a call failed.
#if __has_include(<torch/csrc/shim_exception_state.h>)
void forget_cause() { torch::csrc::shim::details::set_torch_exception_what_without_backtrace(""); }
std::string known_cause() {
  return torch::csrc::shim::details::get_torch_exception_what_without_backtrace();
}
#else
void forget_cause() {}
std::string known_cause() { return {}; }
#endif

/// Whether torch's loader accepts an unpacked package, as it does since 2.14. An older one unpacks
/// the package itself on each load, without ever freeing it.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
constexpr bool kLoadsFolders = false;
#else
constexpr bool kLoadsFolders = true;
#endif

/// A loaded model. Calls wait for a runner here and not in torch, where a waiting call is not
/// woken if the call before it fails.
class Loader {
 public:
  Loader(const std::filesystem::path& package, const std::string& model, at::Device device,
         bool serial, int runners, bool huge_pages, Weights::Regions& regions)
      : weights_(kLoadsFolders ? Weights::map(package, model, huge_pages, regions) : nullptr),
        files_(kLoadsFolders ? unpack(package) : nullptr),
        loader_(files_ ? files_->folder().string() : package.string(), model, serial,
                static_cast<std::size_t>(runners), device.index()),
        free_(runners) {
    if (weights_) weights_->give_to(*loader_.get_runner());
    // GPU kernels are loaded when they first run.
    if (files_ && device.is_cpu()) files_->remove_folder();
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    free_.acquire();
    const std::unique_ptr<Runners, void (*)(Runners*)> taken(
        &free_, [](Runners* runners) { runners->release(); });
    forget_cause();
    try {
      return loader_.boxed_run(std::move(inputs));
    } catch (const std::exception&) {
      const std::string cause = known_cause();
      if (!is_out_of_memory(cause)) throw;
      throw std::runtime_error(cause);
    }
  }

  /// Returns the constants that the code itself reads and writes, by their names in the model.
  auto constants() { return loader_.get_runner()->extract_constants_map(/*use_inactive=*/false); }

 private:
  using Runners = std::counting_semaphore<>;

  std::unique_ptr<Weights> weights_;  // both in use until the loader is gone
  std::unique_ptr<Unpacked> files_;
  AOTIModelPackageLoader loader_;
  Runners free_;
};

/// How a package is loaded.
struct Loading {
  std::filesystem::path path;
  at::Device device;
  bool serial;
  int runners;
  bool huge_pages;

  Weights::Regions regions = {};  // that its models share

  std::unique_ptr<Loader> load(const std::string& model) {
    const std::lock_guard lock(loading());
    return std::make_unique<Loader>(path, model, device, serial, runners, huge_pages, regions);
  }
};

/// The constants that calls of a package change. They are the buffers state_0, state_1 and so on
/// of the compiled module, in the contract's order.
class CarriedState {
 public:
  CarriedState(Loader& loader, const Contract& contract) {
    const auto constants = loader.constants();
    for (std::size_t i = 0; i < contract.state->tensors.size(); ++i) {
      const State::Tensor& tensor = contract.state->tensors[i];
      const auto found = constants.find("state_" + std::to_string(i));
      TORCH_CHECK(found != constants.end(), "the package has no constant for state ",
                  tensor.spec.name, ": the compiler folded it");
      parts_.push_back({found->second, initial_of(contract, tensor)});
      const auto& [constant, initial] = parts_.back();
      TORCH_CHECK(
          constant.scalar_type() == initial.scalar_type() && constant.sizes() == initial.sizes(),
          "state ", tensor.spec.name, " is ", dtype_name(constant.scalar_type()), " ",
          constant.sizes(), " in the package, but ", dtype_name(initial.scalar_type()), " ",
          initial.sizes(), " in the contract");
    }
  }

  /// Writes the initial state into the constants. Waits for the device first, because calls may
  /// still be running on any stream of a GPU.
  void reset(at::Device device) {
    synchronize(device);
    for (auto& [constant, initial] : parts_) constant.copy_(initial);
    synchronize(device);
  }

 private:
  struct Part {
    at::Tensor constant;
    at::Tensor initial;
  };

  static at::Tensor initial_of(const Contract& contract, const State::Tensor& tensor) {
    for (const Dimension& dimension : tensor.spec.shape) {
      TORCH_CHECK(std::holds_alternative<FixedSize>(dimension), "a package cannot keep state ",
                  tensor.spec.name, ", whose size varies");
    }
    return initial_tensor(contract, tensor, {});
  }

  std::vector<Part> parts_;
};

class AotInductorRunner final : public Runner {
 public:
  AotInductorRunner(std::unique_ptr<Loader> loader, at::Device device, const Contract& contract)
      : loader_(std::move(loader)), device_(device) {
    if (contract.keeps_state()) state_.emplace(*loader_, contract);
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    return loader_->run(std::move(inputs));
  }

  void reset() override {
    if (state_) state_->reset(device_);
  }

 private:
  std::unique_ptr<Loader> loader_;
  at::Device device_;
  std::optional<CarriedState> state_;
};

/// A package with several models, each for its own sizes. Calls at other sizes run the model for
/// all sizes, if there is one. Otherwise, no call has other sizes: inputs have passed the contract.
class EntriesRunner final : public Runner {
 public:
  /// Each of the `entries` has the same symbols.
  EntriesRunner(Loading package, const Contract& contract, const std::vector<Sizes>& entries,
                bool general) {
    for (const auto& [symbol, ignored] : entries.front()) find_place(contract, symbol);
    if (general) general_ = package.load("model");  // first: the others may share its weights
    for (const Sizes& entry : entries) {
      std::vector<std::int64_t> sizes;
      std::string name = "entry";
      for (const auto& [ignored, size] : entry) {
        sizes.push_back(size);
        name.push_back('_');
        name += std::to_string(size);  // a stream would group digits, as its locale says
      }
      loaders_.emplace(std::move(sizes), package.load(name));
    }
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    std::vector<std::int64_t> sizes;
    for (const Place& place : places_) {
      sizes.push_back(inputs.at(place.input).size(place.dimension));
    }
    const auto found = loaders_.find(sizes);
    TORCH_CHECK(found != loaders_.end() || general_, "no model is for these sizes");
    const auto& loader = found == loaders_.end() ? general_ : found->second;
    return loader->run(std::move(inputs));
  }

 private:
  /// A dimension that selects the model.
  struct Place {
    std::size_t input;
    std::int64_t dimension;
  };

  void find_place(const Contract& contract, const std::string& name) {
    for (std::size_t i = 0; i < contract.inputs.size(); ++i) {
      const auto& shape = contract.inputs[i].shape;
      const auto found = std::find_if(shape.begin(), shape.end(), [&](const Dimension& dimension) {
        const auto* follows = std::get_if<SymbolSize>(&dimension);
        return follows != nullptr && contract.symbols[follows->symbol].name == name;
      });
      if (found == shape.end()) continue;
      places_.push_back({i, found - shape.begin()});
      return;
    }
    throw Error(ErrorKind::artifact, "no input has a dimension of exactly " + name);
  }

  std::vector<Place> places_;
  std::unique_ptr<Loader> general_;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Loader>> loaders_;
};

/// The sizes that an artifact without a model for all sizes has a model for.
std::vector<Sizes> choices_of(const Contract& contract) {
  std::vector<Sizes> entries;
  for (const Symbol& symbol : contract.symbols) {
    for (const std::int64_t size : symbol.choices) entries.push_back({{symbol.name, size}});
    if (!entries.empty()) break;
  }
  return entries;
}

}  // namespace

std::unique_ptr<Runner> load_aotinductor(const std::filesystem::path& path, at::Device device,
                                         const Contract& contract, bool serial, int runners,
                                         bool huge_pages) {
  Loading package{path, device, serial, runners, huge_pages};
  const std::vector<Sizes> choices = choices_of(contract);
  const std::vector<Sizes>& entries = choices.empty() ? contract.entries : choices;
  if (entries.empty()) {
    return std::make_unique<AotInductorRunner>(package.load("model"), device, contract);
  }
  TORCH_CHECK(!contract.keeps_state(), "a package with entries cannot keep its state: each entry ",
              "would have its own");
  return std::make_unique<EntriesRunner>(std::move(package), contract, entries, choices.empty());
}

}  // namespace exporter
