#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include <caffe2/serialize/inline_container.h>
#include <exporter/artifact.h>
#include <exporter/operators.h>
#include <exporter/stream.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <thread>

#include "archive.h"
#include "device.h"
#include "form.h"
#include "graphs.h"
#include "guard.h"
#include "integrity.h"
#include "machine.h"
#include "runner.h"
#include "stateful.h"

namespace exporter {
namespace {

constexpr const char* kContractRecord = "extra/contract.json";

/// What changes if another file takes the path, or the file is written to: its device, its number,
/// its size and the time of its last change. All zero if there is no file.
std::array<std::int64_t, 5> identity_of(const std::filesystem::path& path) {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return {};
  return {static_cast<std::int64_t>(found.st_dev), static_cast<std::int64_t>(found.st_ino),
          found.st_size, found.st_mtim.tv_sec, found.st_mtim.tv_nsec};
}

ArtifactKind kind_of(caffe2::serialize::PyTorchStreamReader& reader, const std::string& path) {
  if (has_records_below(reader, "data/aotinductor/")) return ArtifactKind::aotinductor;
  if (has_records_below(reader, "models/")) return ArtifactKind::exported_program;
  if (reader.hasRecord("constants.pkl")) return ArtifactKind::torchscript;
  throw Error(ErrorKind::artifact,
              path + " holds no TorchScript, AOTInductor package or exported program");
}

/// Throws unless a compiled package was compiled for this type of device.
void require_kind(const ArtifactInfo& info, at::Device device, const std::string& path) {
  if (info.kind != ArtifactKind::aotinductor) return;
  const std::string type = device.is_cpu() ? "cpu" : "cuda";
  if (type != info.contract.device) {
    throw Error(ErrorKind::artifact,
                path + " was compiled for " + info.contract.device + " and cannot run on " + type);
  }
}

/// Throws if operators of the artifact are not registered. Torch would fail while it reads the
/// model's code, with a message without remedy.
void require_operators(const Contract& contract, const std::string& path) {
  for (const std::string& name : contract.operators) {
    if (has_operators(name)) continue;
    const auto known = find_operators(name);
    throw Error(ErrorKind::artifact, path + " calls operators of " + name +
                                         ", which are not registered here: give --ops-lib " +
                                         (known ? known->string() : "FILE") +
                                         ", or call exporter::load_operators");
  }
}

constexpr int kWarmUpCalls = 3;  // TorchScript profiles the first call and compiles afterwards
constexpr int kGraphs = 8;       // default number of shapes to capture

void require_between(const std::string& what, int value, int min, int max) {
  if (min <= value && value <= max) return;
  throw Error(ErrorKind::usage, what + " is " + std::to_string(value) + ", but must be from " +
                                    std::to_string(min) + " to " + std::to_string(max));
}

int graphs_of(const OpenOptions& options, at::Device device) {
  require_between("cuda_graphs", options.cuda_graphs.value_or(0), 0, kMaxGraphs);
  if (!device.is_cuda()) return 0;
  return options.cuda_graphs.value_or(can_capture_graphs() ? kGraphs : 0);
}

int runners_of(const OpenOptions& options, at::Device device) {
  const unsigned cores = device.is_cpu() ? std::thread::hardware_concurrency() : 1;
  const int runners = options.runners.value_or(std::clamp(static_cast<int>(cores), 1, kMaxRunners));
  require_between("runners", runners, 1, kMaxRunners);
  return runners;
}

void require_number(std::size_t given, const Contract& contract) {
  if (given == contract.outputs.size()) return;
  throw Error(ErrorKind::runtime, "the model returned " + std::to_string(given) +
                                      " outputs, the contract has " +
                                      std::to_string(contract.outputs.size()));
}

/// Throws unless a caller's tensor can take the values of an output.
void require_writable(const at::Tensor& tensor, const TensorSpec& spec) {
  if (!tensor.defined()) {
    throw Error(ErrorKind::contract, "no tensor given for output " + spec.name);
  }
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::contract, "the tensor for output " + spec.name + what);
  };
  if (const std::string form = unusual_form(tensor); !form.empty()) {
    refuse(" is " + form + ": give a dense one with memory");
  }
  if (tensor.scalar_type() != spec.dtype) {
    refuse(" has dtype " + dtype_name(tensor.scalar_type()) + ", not " + dtype_name(spec.dtype));
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuse(" has elements that share memory, as after expand: give one without, such as a clone");
  }
}

void require_fit(const at::Tensor& tensor, const at::Tensor& made, const std::string& name) {
  if (tensor.sizes() == made.sizes() && tensor.scalar_type() == made.scalar_type()) return;
  throw Error(ErrorKind::contract,
              "the tensor for output " + name + " is " + dtype_name(tensor.scalar_type()) + " " +
                  c10::str(tensor.sizes()) + ", the output is " + dtype_name(made.scalar_type()) +
                  " " + c10::str(made.sizes()));
}

/// Returns the tensor as kernels read it: contiguous, with its own values in memory. Torch may
/// represent a conjugate, negated or zero tensor by a flag and the memory of another tensor or
/// none.
at::Tensor plain(at::Tensor tensor) {
  if (tensor._is_zerotensor()) tensor = tensor.clone();
  tensor = tensor.resolve_conj().resolve_neg();
  return tensor.is_contiguous() ? tensor : tensor.contiguous();
}

}  // namespace

const char* to_string(ArtifactKind kind) {
  switch (kind) {
    case ArtifactKind::torchscript:
      return "TorchScript";
    case ArtifactKind::aotinductor:
      return "AOTInductor";
    case ArtifactKind::exported_program:
      return "exported program";
  }
  return "";
}

ArtifactInfo inspect(const std::filesystem::path& path) {
  const auto reader = open_archive(path, ErrorKind::artifact);
  const std::string name = path.string();
  return guarded(ErrorKind::artifact, name, [&] {
    const ArtifactKind kind = kind_of(*reader, name);
    const bool has_contract = reader->hasRecord(kContractRecord);
    if (!has_contract && kind == ArtifactKind::exported_program) {
      return ArtifactInfo{kind, read_program_contract(path), "", std::filesystem::file_size(path)};
    }
    if (!has_contract) {
      throw Error(ErrorKind::artifact, name + " carries no contract; export it with exporter");
    }
    require_members(path, ErrorKind::artifact, *reader, kContractRecord);
    std::string text = read_text(*reader, kContractRecord);
    return ArtifactInfo{kind, Contract::parse(text, name), text, std::filesystem::file_size(path)};
  });
}

std::unique_ptr<Runner> load_runner(const std::filesystem::path& path, const ArtifactInfo& info,
                                    at::Device device, bool serial, int runners, bool huge_pages) {
  if (info.kind == ArtifactKind::torchscript) {
    return load_torchscript(path, device, info.contract.keeps_state());
  }
  if (info.kind == ArtifactKind::exported_program) {
    return load_exported_program(path, device, info.contract, !info.contract_json.empty());
  }
  return load_aotinductor(path, device, info.contract, serial, runners, huge_pages);
}

namespace {

/// Loads a model that keeps its state and puts it into its initial state. It is never captured into
/// a CUDA graph, because a capture runs the model several times.
std::unique_ptr<Runner> load_stateful(const std::filesystem::path& path, const ArtifactInfo& info,
                                      at::Device device, bool wants_graphs, bool huge_pages) {
  auto loaded = load_runner(path, info, device, /*serial=*/false, /*runners=*/1, huge_pages);
  loaded->reset();
  return serialize_calls(std::move(loaded), info.contract,
                         wants_graphs ? "no CUDA graph: the artifact keeps its state" : "");
}

}  // namespace

Artifact artifact_of(std::filesystem::path path, ArtifactInfo info, at::Device device,
                     std::unique_ptr<Runner> runner) {
  return {std::move(path), std::move(info), device, std::move(runner)};
}

Artifact Artifact::open(const std::filesystem::path& path, const OpenOptions& options) {
  return guarded(ErrorKind::artifact, path.string(), [&] { return open_file(path, options); });
}

Artifact Artifact::open_file(const std::filesystem::path& path, const OpenOptions& options) {
  const auto checked = identity_of(path);
  require_unaltered(path, ErrorKind::artifact, options.sha256, options.require_sha256);
  ArtifactInfo info = inspect(path);
  const at::Device wanted =
      parse_device(options.device.empty() ? info.contract.device : options.device);
  const int runners = runners_of(options, wanted);
  require_kind(info, wanted, path.string());
  require_cpu(info.contract, path.string());
  for (const auto& library : options.operators) load_operators(library);
  require_operators(info.contract, path.string());
  at::Device device = wanted;
  auto runner = guarded(ErrorKind::artifact, path.string() + ": cannot be loaded", [&] {
    device = prepare_device(wanted, info.contract.precision == "tf32");
    require_device(info.contract, device, path.string());
    const c10::InferenceMode no_gradients;
    const int graphs = graphs_of(options, device);
    const bool huge = options.huge_pages;
    if (info.contract.keeps_state()) return load_stateful(path, info, device, graphs > 0, huge);
    auto loaded = load_runner(path, info, device, graphs > 0, runners, huge);
    const bool captures = graphs > 0 && loaded->written_inputs().empty();
    return captures ? capture_graphs(std::move(loaded), graphs) : std::move(loaded);
  });
  if (identity_of(path) != checked) {
    throw Error(ErrorKind::artifact, path.string() +
                                         ": it was replaced while it was opened: "
                                         "open it again");
  }
  return {path, std::move(info), device, std::move(runner)};
}

Artifact::Artifact(std::filesystem::path path, ArtifactInfo info, at::Device device,
                   std::unique_ptr<Runner> runner)
    : path_(std::move(path)), info_(std::move(info)), device_(device), runner_(std::move(runner)) {}

Artifact::Artifact(Artifact&&) noexcept = default;
Artifact& Artifact::operator=(Artifact&&) noexcept = default;
Artifact::~Artifact() = default;

template <typename Action>
std::vector<at::Tensor> Artifact::execute(std::vector<at::Tensor> inputs, const Action& act) const {
  contract().check(inputs);
  return guarded(ErrorKind::runtime, path_.native(), [&] {
    const c10::InferenceMode no_gradients;
    // OpenMP gives each new thread all cores. This sets the process's number of threads, which
    // compiled packages do not do.
    at::internal::lazy_init_num_threads();
    // The current device is per thread, and this thread may not be the one that opened the
    // artifact.
    c10::OptionalDeviceGuard current;
    if (!device_.is_cpu()) current.reset_device(device_);
    const auto written = runner_->written_inputs();
    const std::vector<at::Tensor> given = written.empty() ? std::vector<at::Tensor>{} : inputs;
    for (at::Tensor& input : inputs) {
      input = plain(std::move(input));
      if (input.device() != device_) input = input.to(device_);
    }
    if (written.empty()) return act(std::move(inputs));
    auto outputs = act(inputs);
    for (const std::size_t i : written) {
      if (!given[i].is_same(inputs[i])) given[i].copy_(inputs[i]);
    }
    return outputs;
  });
}

std::vector<at::Tensor> Artifact::run(std::vector<at::Tensor> inputs) const {
  return execute(std::move(inputs),
                 [&](std::vector<at::Tensor> placed) { return runner_->run(std::move(placed)); });
}

std::vector<NodeProfile> Artifact::profile(std::vector<at::Tensor> inputs) const {
  std::vector<NodeProfile> nodes;
  // The inputs outlive the call, whose memory is counted without them.
  execute(std::move(inputs), [&](const std::vector<at::Tensor>& placed) {
    auto outputs = runner_->profile(placed, nodes);
    if (!outputs) {
      throw Error(ErrorKind::usage,
                  "it has no nodes to profile: export the model with --targets export, and open "
                  "that file with cuda_graphs = 0");
    }
    return *std::move(outputs);
  });
  return nodes;
}

NamedTensors Artifact::run_named(NamedTensors inputs) const {
  auto outputs = run(contract().arrange(std::move(inputs)));
  require_number(outputs.size(), contract());
  NamedTensors named;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    named.insert_or_assign(contract().outputs[i].name, std::move(outputs[i]));
  }
  return named;
}

void Artifact::run_into(std::vector<at::Tensor> inputs,
                        const std::vector<at::Tensor>& outputs) const {
  if (outputs.size() != contract().outputs.size()) {
    throw Error(ErrorKind::contract, std::to_string(outputs.size()) +
                                         " tensors given for the outputs, the contract has " +
                                         std::to_string(contract().outputs.size()));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i)
    require_writable(outputs[i], contract().outputs[i]);
  const auto made = run(std::move(inputs));
  require_number(made.size(), contract());
  for (std::size_t i = 0; i < made.size(); ++i) {
    require_fit(outputs[i], made[i], contract().outputs[i].name);
  }
  guarded(ErrorKind::runtime, path_.native(), [&] {
    const c10::InferenceMode no_gradients;
    c10::OptionalDeviceGuard current;
    if (!device_.is_cpu()) current.reset_device(device_);
    for (std::size_t i = 0; i < made.size(); ++i) outputs[i].copy_(made[i]);
  });
}

void Artifact::warm_up(const std::vector<Sizes>& shapes) const {
  for (const Sizes& sizes : shapes) {
    reset();
    for (int i = 0; i < kWarmUpCalls; ++i) run(contract().example_inputs(sizes));
  }
  synchronize();
  reset();
}

void Artifact::reset() const {
  guarded(ErrorKind::runtime, path_.native() + ": its state cannot be reset", [&] {
    const c10::InferenceMode no_gradients;
    c10::OptionalDeviceGuard current;
    if (!device_.is_cpu()) current.reset_device(device_);
    runner_->reset();
  });
}

Stream Artifact::stream() const& {
  if (!contract().state) {
    throw Error(ErrorKind::usage, path_.string() + " has no state: call run for each input");
  }
  return Stream(*this);
}

std::string Artifact::execution_mode() const { return runner_->execution_mode(); }

void Artifact::synchronize() const {
  guarded(ErrorKind::runtime, path_.native(), [&] { exporter::synchronize(device_); });
}

}  // namespace exporter
