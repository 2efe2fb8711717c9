// Built as a separate library, libexporter_cuda.so, the only one here that links CUDA libraries.

#include "../graphs.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "copies.h"

namespace exporter {
namespace {

// TorchScript profiles its first runs and compiles in the next, and libraries allocate workspaces.
// None of that is allowed inside a capture.
constexpr int kWarmUpRuns = 4;

using Shapes = std::vector<std::int64_t>;

/// Returns the sizes of all inputs. They identify the shapes, because the contract fixes the ranks.
Shapes shapes_of(const std::vector<at::Tensor>& inputs) {
  Shapes shapes;
  for (const at::Tensor& input : inputs) {
    shapes.insert(shapes.end(), input.sizes().begin(), input.sizes().end());
  }
  return shapes;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

// How far a replay may be from a run without a graph: relative to the largest value, and as a share
// of the elements that are not floating.
constexpr double kNoise = 1e-2;
constexpr double kDifferent = 0.05;

/// Returns inputs with other floating values than these, and than zeros, which a warm-up has.
/// Integers stay, because they may be places in a table.
std::vector<at::Tensor> changed(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& input : inputs) {
    others.push_back(input.is_floating_point() ? input * 0.5 + 0.25 : input);
  }
  return others;
}

bool alike(const at::Tensor& one, const at::Tensor& other) {
  if (one.sizes() != other.sizes()) return false;
  if (one.numel() == 0) return true;
  if (one.is_complex()) return alike(at::view_as_real(one), at::view_as_real(other));
  if (!one.is_floating_point()) {
    return (one != other).to(at::kFloat).mean().item<double>() <= kDifferent;
  }
  const auto finite = [](const at::Tensor& t) {
    return t.to(at::kFloat).nan_to_num(0.0, 0.0, 0.0);
  };
  const double scale = finite(other).abs().max().item<double>();
  const double error = (finite(one) - finite(other)).abs().max().item<double>();
  return at::equal(one.isnan(), other.isnan()) && error <= kNoise * scale;
}

/// Returns whether two runs returned the same, apart from the noise of kernels that add in any
/// order.
bool alike(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return alike(a, b); });
}

/// A CUDA event. ATen's own class needs CUDA headers that the wheels lack.
class Event {
 public:
  Event() { C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }

  void record(c10::cuda::CUDAStream stream) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }

  /// Makes a stream wait for the recorded work.
  void block(c10::cuda::CUDAStream stream) { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_)); }

 private:
  cudaEvent_t event_{};
};

/// A stream that nobody else uses. ATen's pool hands out the same streams repeatedly, so the work
/// of another thread could be captured too.
class OwnStream {
 public:
  OwnStream() { C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  c10::cuda::CUDAStream get() const {
    return c10::cuda::getStreamFromExternal(stream_, c10::cuda::current_device());
  }

 private:
  cudaStream_t stream_{};
};

/// Makes one node wait for another.
void order(cudaGraph_t graph, cudaGraphNode_t first, cudaGraphNode_t then) {
#if CUDART_VERSION >= 13000
  C10_CUDA_CHECK(cudaGraphAddDependencies(graph, &first, &then, nullptr, 1));
#else
  C10_CUDA_CHECK(cudaGraphAddDependencies(graph, &first, &then, 1));
#endif
}

std::vector<cudaGraphNode_t> roots_of(cudaGraph_t graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetRootNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) C10_CUDA_CHECK(cudaGraphGetRootNodes(graph, nodes.data(), &count));
  return nodes;
}

std::size_t dependents(cudaGraphNode_t node) {
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  C10_CUDA_CHECK(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &count));
#else
  C10_CUDA_CHECK(cudaGraphNodeGetDependentNodes(node, nullptr, &count));
#endif
  return count;
}

/// Returns the nodes that no other node depends on.
std::vector<cudaGraphNode_t> leaves_of(cudaGraph_t graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::erase_if(nodes, [](cudaGraphNode_t node) { return dependents(node) > 0; });
  return nodes;
}

/// A captured run and the buffers that it reads and writes.
struct Graph {
  std::mutex mutex;  // the buffers serve one call at a time
  OwnStream stream;  // libraries have one workspace per stream, and graphs may run concurrently
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::optional<Copies> in;        // into `inputs`
  std::optional<Copies> out;       // from the `plain` outputs
  std::vector<std::size_t> plain;  // indices of the dense outputs on the GPU
  bool captured = false;
  std::optional<c10::cuda::CUDAStream> last;  // stream of the last replay
  Event done;
  std::vector<at::Tensor> room;  // the plain outputs of the next replay on `last`; may be empty
};

class GraphRunner final : public Runner {
 public:
  GraphRunner(std::unique_ptr<Runner> inner, int limit)
      : inner_(std::move(inner)), limit_(static_cast<std::size_t>(limit)) {}

  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override {
    if (const auto graph = find(inputs)) {
      const std::lock_guard lock(graph->mutex);
      if (!graph->captured && graph->inputs.empty()) try_to_capture(*graph, inputs);
      if (graph->captured) return replay(*graph, inputs);
    }
    const std::lock_guard lock(inner_mutex_);
    return inner_->run(std::move(inputs));
  }

  std::string execution_mode() const override {
    const std::lock_guard lock(mutex_);
    return failure_.empty() ? "CUDA graph" : "no CUDA graph: " + failure_;
  }

 private:
  /// Returns the graph for these shapes, which may not be captured yet, or null if the limit is
  /// reached.
  std::shared_ptr<Graph> find(const std::vector<at::Tensor>& inputs) {
    const std::lock_guard lock(mutex_);
    auto shapes = shapes_of(inputs);
    const auto found = graphs_.find(shapes);
    if (found != graphs_.end()) return found->second;
    if (graphs_.size() >= limit_) return nullptr;
    return graphs_.emplace(std::move(shapes), std::make_shared<Graph>()).first->second;
  }

  /// Captures the graph. If the model does something that a capture forbids, leaves the graph
  /// uncaptured and records the reason.
  void try_to_capture(Graph& graph, const std::vector<at::Tensor>& inputs) {
    const std::lock_guard lock(inner_mutex_);
    graph.inputs = clones(inputs);
    cudaDeviceSynchronize();
    try {
      capture(graph);
    } catch (const std::exception& error) {
      cudaGetLastError();  // clears the error of the failed capture
      graph.graph.reset();
      for (auto* held : {&graph.outputs, &graph.room}) held->clear();
      graph.in.reset();
      graph.out.reset();
      const std::lock_guard note(mutex_);
      failure_ = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
    }
  }

  void capture(Graph& graph) {
    const auto stream = graph.stream.get();
    const c10::cuda::CUDAStreamGuard guard(stream);
    for (int i = 0; i < kWarmUpRuns; ++i) inner_->run(graph.inputs);
    const auto others = changed(graph.inputs);
    const auto expected = repeatable(others);
    stream.synchronize();
    graph.graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      graph.outputs = inner_->run(graph.inputs);
    } catch (...) {
      try {
        graph.graph.capture_end();
      } catch (const std::exception&) {  // the model's own error is more useful
      }
      throw;
    }
    graph.graph.capture_end();
    add_copies(graph);
    graph.graph.instantiate();
    if (expected && !alike(replay(graph, others), *expected)) {
      throw std::runtime_error(
          "a replay of its graph returns other outputs: an operator does not run on the current "
          "stream");
    }
    graph.captured = true;
  }

  /// Returns the outputs for these inputs, or nothing if the model does not take them or returns
  /// others at a second call.
  std::optional<std::vector<at::Tensor>> repeatable(const std::vector<at::Tensor>& inputs) {
    try {
      auto outputs = clones(inner_->run(inputs));
      if (alike(inner_->run(inputs), outputs)) return outputs;
    } catch (const std::exception&) {  // a model may raise anything at other values
    }
    return std::nullopt;
  }

  /// Adds copies of the inputs before and of the outputs after the captured nodes. Launched one by
  /// one, the copies could take longer than the model. Each replay sets their addresses.
  void add_copies(Graph& graph) {
    const cudaGraph_t raw = graph.graph.raw_cuda_graph();
    const auto roots = roots_of(raw);
    if (!kernel_) kernel_.emplace();
    std::vector<Copy> in;
    for (const at::Tensor& input : graph.inputs) {
      in.push_back({input.mutable_data_ptr(), input.const_data_ptr(), input.nbytes()});
    }
    graph.in.emplace(*kernel_, std::move(in));
    graph.in->add(raw, {});
    for (const auto node : graph.in->nodes()) {
      for (const auto root : roots) order(raw, node, root);
    }
    std::vector<Copy> out;
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      const at::Tensor& output = graph.outputs[i];
      if (!output.is_cuda() || !output.is_non_overlapping_and_dense()) continue;
      out.push_back({output.mutable_data_ptr(), output.const_data_ptr(), output.nbytes()});
      graph.plain.push_back(i);
    }
    graph.out.emplace(*kernel_, std::move(out));
    graph.out->add(raw, leaves_of(raw));
  }

  static constexpr std::size_t rounded(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    return (bytes + kAlignment - 1) & -kAlignment;
  }

  static std::size_t bytes_of_plain(const Graph& graph) {
    std::size_t bytes = 0;
    for (const std::size_t i : graph.plain) bytes += rounded(graph.outputs[i].nbytes());
    return bytes;
  }

  /// Makes the next replay write its plain outputs to new tensors on the current stream. They share
  /// one block of memory, because an allocation is the slowest part of a call.
  static void make_room(Graph& graph) {
    const std::size_t bytes = bytes_of_plain(graph);
    c10::Allocator* const allocator = c10::cuda::CUDACachingAllocator::get();
    const c10::Storage block(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes),
                             allocator, /*resizable=*/false);
    std::vector<at::Tensor> outputs(graph.outputs.size());
    std::size_t offset = 0;
    for (const std::size_t i : graph.plain) {
      const at::Tensor& own = graph.outputs[i];
      outputs[i] = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(block), c10::DispatchKeySet(c10::DispatchKey::CUDA), own.dtype());
      outputs[i].unsafeGetTensorImpl()->set_sizes_and_strides(
          own.sizes(), own.strides(), static_cast<std::int64_t>(offset / own.element_size()));
      offset += rounded(own.nbytes());
    }
    for (std::size_t i = 0; i < graph.plain.size(); ++i) {
      graph.out->move_to(i, outputs[graph.plain[i]].mutable_data_ptr());
    }
    graph.out->update(graph.graph.raw_cuda_graph_exec());
    graph.room = std::move(outputs);
  }

  /// Allocates the outputs of the next replay while this one runs, unless they are large: then the
  /// memory is not worth the time. If memory is short, the next call reports it.
  static void make_room_ahead(Graph& graph) {
    constexpr std::size_t kLarge = 1 << 20;
    if (bytes_of_plain(graph) > kLarge) return;
    try {
      make_room(graph);
    } catch (const std::exception&) {  // this call has its outputs
    }
  }

  /// Replays the graph and returns copies of its outputs, which the next replay overwrites.
  static std::vector<at::Tensor> replay(Graph& graph, const std::vector<at::Tensor>& inputs) {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (graph.last && *graph.last != stream) {
      graph.done.record(*graph.last);
      graph.done.block(stream);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      graph.in->move_from(i, inputs[i].const_data_ptr());
    }
    graph.in->update(graph.graph.raw_cuda_graph_exec());
    if (graph.room.empty() || graph.last != stream) make_room(graph);
    graph.last = stream;
    graph.graph.replay();
    std::vector<at::Tensor> outputs = std::exchange(graph.room, {});
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) outputs[i] = graph.outputs[i].clone();
    }
    make_room_ahead(graph);
    return outputs;
  }

  std::unique_ptr<Runner> inner_;
  std::optional<CopyKernel> kernel_;  // declared before the graphs, which it must outlive
  std::mutex inner_mutex_;            // a runner that can be captured serves one call at a time
  mutable std::mutex mutex_;
  std::map<Shapes, std::shared_ptr<Graph>> graphs_;
  std::size_t limit_;
  std::string failure_;
};

}  // namespace
}  // namespace exporter

extern "C" exporter::Runner* exporter_make_graphs(exporter::Runner* inner, int limit) {
  return new exporter::GraphRunner(std::unique_ptr<exporter::Runner>(inner), limit);
}
