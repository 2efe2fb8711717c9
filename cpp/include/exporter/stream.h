#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/artifact.h>

#include <memory>
#include <vector>

namespace exporter {

class StateSizes;

/// A sequence of calls to an artifact with state. Each call continues from the previous one.
///
///     exporter::Stream stream = artifact.stream();
///     for (const at::Tensor& chunk : chunks) play(stream.run({chunk})[0]);
///
/// A stream refers to the artifact, which must outlive it and must not be moved. If the caller
/// keeps the state, streams are independent, and each serves one thread. If the artifact keeps it,
/// all its streams and calls share one state. A moved-from stream throws Error(usage) until another
/// one is assigned to it.
class Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  /// Like `Artifact::run`, but the inputs and outputs exclude the state's tensors. The state is
  /// made for the sizes of the first call. Also throws Error(contract) if a later call changes a
  /// size that the state depends on, such as the batch. If a call throws and the caller keeps the
  /// state, the state is unchanged.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs);

  /// Starts a new sequence from the initial state.
  void reset();

 private:
  friend class Artifact;
  explicit Stream(const Artifact& artifact);
  const Artifact& artifact() const;

  const Artifact* artifact_ = nullptr;  // null after a move
  std::unique_ptr<StateSizes> sizes_;
  std::vector<at::Tensor> state_;  // if the caller keeps it; empty before the first call
};

}  // namespace exporter
