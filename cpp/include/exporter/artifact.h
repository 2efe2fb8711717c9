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
  torchscript,       ///< a `.pt` file written by torch.jit.save
  aotinductor,       ///< a `.pt2` package with compiled code
  exported_program,  ///< a `.pt2` file written by torch.export.save
};

/// "TorchScript", "AOTInductor" or "exported program".
const char* to_string(ArtifactKind kind);

/// The description stored in an artifact file, read without loading the model.
struct ArtifactInfo {
  ArtifactKind kind;
  Contract contract;
  std::string contract_json;  ///< verbatim from the file; empty if an exported program has none
  std::uintmax_t bytes;       ///< size of the file
};

/// Reads the contract of an artifact. The time does not depend on the size of the weights. An
/// exported program that exporter did not write gets a contract from its signature, with outputs
/// named output_0, output_1 and so on. Throws Error(artifact) if the file is missing or broken, or
/// if another kind of artifact has no contract.
ArtifactInfo inspect(const std::filesystem::path& path);

/// Returns the reason why this machine's CPU cannot run the artifact, with the remedy: it names the
/// instruction sets that the CPU lacks. Returns an empty string if the CPU can run it.
std::string cpu_obstacle(const Contract& contract);

/// Upper limits of the fields of OpenOptions.
inline constexpr int kMaxRunners = 256;
inline constexpr int kMaxGraphs = 32;

struct OpenOptions {
  /// "cpu", "cuda" or "cuda:N". If empty, the contract's device is used.
  std::string device = {};
  /// Number of calls that a compiled package serves concurrently. Each uses a separate runner; the
  /// runners share the weights, and further calls wait. The default is the number of cores on the
  /// CPU, and 1 on a GPU, where each runner loads the kernels again. A package that keeps its state
  /// always has one runner.
  std::optional<int> runners = std::nullopt;
  /// On a CPU: copies the weights of a compiled package into huge pages, if the system has them,
  /// instead of mapping the file. Calls may take less time; loading takes longer, and processes do
  /// not share the memory.
  bool huge_pages = false;
  /// On a GPU: number of shapes to capture into CUDA graphs, each on its first use. Other shapes
  /// run without a graph. 0 disables capture; the default is 8 if this build can capture. A
  /// captured package serves one call of a shape at a time. An artifact that keeps its state is
  /// never captured.
  std::optional<int> cuda_graphs = std::nullopt;
  /// Libraries with operators outside torch, loaded before the artifact; see `load_operators`.
  std::vector<std::filesystem::path> operators = {};
  /// Expected SHA-256 of the file, as 64 lower-case hexadecimal digits. If empty, it is taken from
  /// a SHA256SUMS file beside the artifact.
  std::string sha256 = {};
  /// Refuses a file whose expected SHA-256 is not known.
  bool require_sha256 = false;
};

class Runner;
class Stream;
struct NodeProfile;  // exporter/profile.h

/// A loaded model with its contract.
///
///     auto artifact = exporter::Artifact::open("bert.pt");
///     std::vector<at::Tensor> outputs = artifact.run({input_ids, attention_mask});
class Artifact {
 public:
  /// Loads a `.pt` or `.pt2` file; the content decides which of the two it is.
  ///
  /// An altered file is refused before it is loaded. It is checked against the SHA-256 in `sha256`
  /// or in a SHA256SUMS file beside the artifact or beside the target of a link to it; otherwise
  /// against the CRC-32 of every member of the archive. A file missing from that SHA256SUMS is
  /// refused too.
  ///
  /// The weights of a compiled package are mapped from the file, so the file must not be
  /// overwritten or truncated while the artifact is open; it may be replaced or deleted.
  /// (TorchScript files, GPU packages and those of exporters before torch 2.14 are copied.) The
  /// rest of a package is unpacked below $TMPDIR while it is loaded (exporter/unpacked.h). Open
  /// artifacts with the same content share one library. CUDA libraries are loaded only if `device`
  /// is a GPU.
  ///
  /// Throws Error(artifact) if the file is missing, broken or altered, calls operators that are not
  /// registered, or was built for another CPU or GPU. Throws Error(usage) for an invalid device,
  /// number of runners or graphs, or library.
  static Artifact open(const std::filesystem::path& path, const OpenOptions& options = {});

  Artifact(Artifact&&) noexcept;
  Artifact& operator=(Artifact&&) noexcept;
  ~Artifact();

  const ArtifactInfo& info() const noexcept { return info_; }
  const Contract& contract() const noexcept { return info_.contract; }
  at::Device device() const noexcept { return device_; }

  /// Runs the model once, without gradients. `inputs` are in the contract's order. Inputs are made
  /// contiguous, negative and conjugate bits are resolved, and inputs on another device are copied
  /// to `device()`. Returns the outputs as a flat list in the contract's order, on `device()`. The
  /// caller owns them, and no later call writes to them. They are inference tensors
  /// (c10::InferenceMode). Those of TorchScript and of an exported program may share memory with
  /// its inputs. Inputs are not changed, except those to which a TorchScript file, or an exported
  /// program without exporter's contract, writes.
  ///
  /// Errors: throws Error(contract) before anything runs if the inputs do not fit,
  /// Error(out_of_memory) if the machine or the GPU runs out of memory, and Error(runtime) if the
  /// model fails for another reason.
  ///
  /// Streams: on a GPU all work, including the copies of inputs, is queued on the calling thread's
  /// current CUDA stream of `device()` (c10::cuda::getCurrentCUDAStream). A CUDA graph is captured
  /// on a separate stream and replayed on the current one.
  ///
  /// Waiting: on a GPU the call returns once the work is queued. Work queued later on the same
  /// stream sees complete outputs and may write to the inputs. Another stream must wait for an
  /// event of this one, and the host must wait for the stream or call `synchronize`. Reading a
  /// value (`item`, `cpu`) waits implicitly. Inputs must be complete on the current stream when the
  /// call is made. The host waits inside the call only if an input is copied from pageable host
  /// memory, the model itself reads a value, or a shape is captured. On the CPU the outputs are
  /// complete when the call returns.
  ///
  /// Threads: may be called from several threads at once. A compiled package serves as many calls
  /// at a time as it has runners, and a CUDA graph serves one; further calls wait. Calls without a
  /// graph run one at a time, unless `cuda_graphs` is 0. An artifact that keeps its state serves
  /// one call at a time and throws Error(contract) for a size that its state was not made for. Each
  /// call continues from the state that the previous call left, whichever thread made it. Do not
  /// move or destroy an artifact while a call is in progress.
  ///
  /// A moved-from artifact may only be destroyed or assigned to.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) const;

  /// Like `run`, with inputs and outputs by name. An omitted `state.NAME` is the initial state.
  /// Also throws Error(contract) for a missing or unknown name.
  NamedTensors run_named(NamedTensors inputs) const;

  /// Like `run`, but copies the outputs into the caller's tensors, which may have any device and
  /// strides but must not share memory with one another. On a GPU the copies are queued on the same
  /// stream, and the call waits for a copy to pageable host memory. Throws Error(contract), before
  /// writing to any tensor, if their number, a dtype or a shape differs from the outputs', or if
  /// one cannot be written to, as an expanded one or one on the device meta.
  void run_into(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& outputs) const;

  /// Like `run`, for an exported program: returns its nodes, in the order in which they ran, with
  /// their time and memory. On a GPU the host waits after each node, so that its time includes its
  /// kernels. Throws Error(usage) for another kind of artifact, or if it was opened with CUDA
  /// graphs.
  std::vector<NodeProfile> profile(std::vector<at::Tensor> inputs) const;

  /// Runs the model three times on `Contract::example_inputs` of each shape, so that no request
  /// pays for first-call work: TorchScript's profiling and fusion, a package's constants, kernels,
  /// and CUDA graph capture, which runs the model seven times. At most OpenOptions::cuda_graphs
  /// shapes are captured. The inputs are zeros; if the model raises on zeros or takes another code
  /// path, call `run` with real inputs instead. Returns when the device is idle. Afterwards an
  /// artifact that keeps its state is in its initial state, so call this before serving requests.
  /// Throws Error(contract) for sizes that the contract does not allow.
  void warm_up(const std::vector<Sizes>& shapes = {Sizes{}}) const;

  /// Restores the initial state of an artifact that keeps its state; does nothing for others. Waits
  /// for calls in progress. Throws Error(runtime) if the model fails.
  void reset() const;

  /// Starts a sequence of calls from the initial state, in which each call passes its state to the
  /// next; see exporter/stream.h. Throws Error(usage) for an artifact without state.
  Stream stream() const&;
  Stream stream() && = delete;

  /// Returns "CUDA graph", or the reason why there is none; empty if neither applies. The value may
  /// change between calls, because a shape is captured on its first use.
  std::string execution_mode() const;

  /// Waits until the device has finished all queued work; returns immediately on the CPU.
  void synchronize() const;

 private:
  friend Artifact artifact_of(std::filesystem::path path, ArtifactInfo info, at::Device device,
                              std::unique_ptr<Runner> runner);  // src/runner.h
  Artifact(std::filesystem::path path, ArtifactInfo info, at::Device device,
           std::unique_ptr<Runner> runner);
  static Artifact open_file(const std::filesystem::path& path, const OpenOptions& options);
  /// Checks and places the inputs, and calls `act` with them.
  template <typename Action>
  std::vector<at::Tensor> execute(std::vector<at::Tensor> inputs, const Action& act) const;

  std::filesystem::path path_;
  ArtifactInfo info_;
  at::Device device_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace exporter
