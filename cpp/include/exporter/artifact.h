#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/contract.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

enum class ArtifactKind {
  torchscript,  ///< a `.pt` of torch.jit.save
  aotinductor,  ///< a `.pt2` that holds compiled code
};

/// "TorchScript" or "AOTInductor".
const char* to_string(ArtifactKind kind);

/// What a file says of itself, without loading the model.
struct ArtifactInfo {
  ArtifactKind kind;
  Contract contract;
  std::string contract_json;  ///< as it stands in the file
  std::uintmax_t bytes;       ///< size of the file
};

/// Reads the contract of an artifact; fast, whatever the model's size. Throws Error(artifact) when
/// the file is missing, broken, without a contract, or holds an ExportedProgram.
ArtifactInfo inspect(const std::filesystem::path& path);

/// Why this machine's CPU cannot run the artifact, such as "was built for avx512f, which this CPU
/// has not: export it on this machine, or with --portable"; empty when it can.
std::string cpu_obstacle(const Contract& contract);

/// The most that OpenOptions may ask for.
inline constexpr int kMaxRunners = 256;
inline constexpr int kMaxGraphs = 32;

struct OpenOptions {
  /// "cpu", "cuda" or "cuda:N"; the contract's device when empty.
  std::string device = {};
  /// Calls that a compiled package serves at the same time, each with a runner of its own; they
  /// share the weights. Further calls wait. Unless given, as many as there are cores on the CPU,
  /// and 1 on a GPU, where each runner loads the kernels anew. A package that keeps its state has
  /// one, whatever is given.
  std::optional<int> runners = std::nullopt;
  /// On a GPU: how many shapes are captured into CUDA graphs, each when it is met first; other
  /// shapes run as they are. 0 captures none; unless given, it is 8 where this build can capture. A
  /// captured package serves one call of a shape at a time. An artifact that keeps its state is not
  /// captured.
  std::optional<int> cuda_graphs = std::nullopt;
  /// Libraries of operators outside torch's own, loaded first; see `load_operators`.
  std::vector<std::filesystem::path> operators = {};
  /// SHA-256 that the file has to have, as 64 hexadecimal digits in lower case; where it is empty,
  /// a SHA256SUMS beside the file says it.
  std::string sha256 = {};
  /// Refuse a file of which nobody says its SHA-256.
  bool require_sha256 = false;
};

class Runner;
class Stream;

/// A loaded model with its contract.
///
///     auto artifact = exporter::Artifact::open("bert.pt");
///     std::vector<at::Tensor> outputs = artifact.run({input_ids, attention_mask});
class Artifact {
 public:
  /// Loads a `.pt` or `.pt2`, told apart by content. What was altered is refused first: by its
  /// SHA-256 where `sha256` or a SHA256SUMS beside the file, or beside what it links to, tells
  /// that, else by the CRC-32 of every member of the archive. A file that such a SHA256SUMS does
  /// not list is refused too. A compiled package is unpacked below $TMPDIR (exporter/unpacked.h),
  /// once for all that are open and have the same content. Loads CUDA's libraries only when
  /// `device` asks for a GPU. Throws Error(artifact), also when the artifact calls operators that
  /// are not registered or was built for another CPU or GPU, and Error(usage) for a device, a
  /// number of runners or graphs, or a library that cannot be.
  static Artifact open(const std::filesystem::path& path, const OpenOptions& options = {});

  Artifact(Artifact&&) noexcept;
  Artifact& operator=(Artifact&&) noexcept;
  ~Artifact();

  const ArtifactInfo& info() const noexcept { return info_; }
  const Contract& contract() const noexcept { return info_.contract; }
  at::Device device() const noexcept { return device_; }

  /// Runs the model once, without gradients. `inputs` stand in the contract's order; one that is
  /// not contiguous is made so, one with the negative or conjugate bit gets the values that it
  /// stands for, and one on another device is moved. Returns the outputs, flat, in the contract's
  /// order, on `device()`; they are the caller's, and no later call writes to them.
  ///
  /// Errors: Error(contract) before anything runs, Error(out_of_memory) when memory runs out, of
  /// the machine or of the GPU, Error(runtime) when the model fails otherwise.
  ///
  /// Streams: on a GPU all work is queued on the calling thread's current CUDA stream of
  /// `device()` (c10::cuda::getCurrentCUDAStream), the copies of inputs included. A CUDA graph is
  /// captured on a stream of its own and replayed on the current one.
  ///
  /// Waiting: on a GPU the call returns once the work is queued. What is queued later on the same
  /// stream finds the outputs complete, and may write to the inputs; another stream has to wait
  /// for an event of this one, and the host for the stream or for `synchronize`. Reading a value
  /// (`item`, `cpu`) waits by itself. Inputs must be complete on the current stream when the call
  /// is made. The host waits inside the call only where an input is copied from its pageable
  /// memory, the model itself asks for a value, or a shape is captured. On the CPU the outputs are
  /// complete when the call returns.
  ///
  /// Threads: may be called from several threads at once; a compiled package serves as many calls
  /// at a time as it has runners, a CUDA graph one, and others wait. An artifact that keeps its
  /// state serves one at a time, and throws Error(contract) for a size that its state was not made
  /// for; what one call leaves, the next call finds, whoever makes it. Moving or destroying an
  /// artifact while a call is in progress is an error of the caller's.
  ///
  /// A moved-from artifact may be destroyed or assigned to, and nothing else.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const;

  /// As `run`, with inputs and outputs by name; `state.NAME` that is left out is the initial state.
  /// Throws Error(contract) also for a name that is missing or that the contract has not.
  NamedTensors run_named(NamedTensors inputs) const;

  /// As `run`, and copies the outputs into the caller's tensors, of any device and strides; on a
  /// GPU the copies are queued on the same stream, and one to the CPU's pageable memory is waited
  /// for. Throws Error(contract), before any of them is written, where their number, a dtype or a
  /// shape is not that of the outputs.
  void run_into(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& outputs) const;

  /// Calls the model with `Contract::example_inputs` of each of these shapes, three times each, so
  /// that no request pays for what first calls do: profiles and fusion of TorchScript, constants
  /// of a package, kernels, and a CUDA graph, whose capture runs the model five times. No more
  /// shapes are captured than OpenOptions::cuda_graphs. The inputs are zeros: where a model raises
  /// for them, or takes another way, call `run` with inputs of your own instead. Returns when the
  /// device is idle; an artifact that keeps its state is in its initial state then, so call this
  /// before requests are served. Throws Error(contract) for sizes that cannot be.
  void warm_up(const std::vector<Sizes>& shapes = {Sizes{}}) const;

  /// Restores the initial state of an artifact that keeps one, as it was opened; does nothing for
  /// others. Waits for calls in progress. Throws Error(runtime) when the model fails.
  void reset() const;

  /// A sequence of calls that feeds the state of each to the next, from the initial state on; see
  /// exporter/stream.h. Throws Error(usage) for an artifact without state.
  Stream stream() const&;
  Stream stream() && = delete;

  /// How the model runs, where that is worth a word: "CUDA graph", or why there is none. Empty
  /// otherwise. It may change with the calls, for a shape is captured when it is met first.
  std::string execution_mode() const;

  /// Waits until the device has done all that was asked of it; nothing to wait for on the CPU.
  void synchronize() const;

 private:
  friend Artifact artifact_of(std::filesystem::path path, ArtifactInfo info, at::Device device,
                              std::unique_ptr<Runner> runner);  // src/runner.h
  Artifact(std::filesystem::path path, ArtifactInfo info, at::Device device,
           std::unique_ptr<Runner> runner);
  static Artifact open_file(const std::filesystem::path& path, const OpenOptions& options);

  std::filesystem::path path_;
  ArtifactInfo info_;
  at::Device device_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace exporter
