#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/artifact.h>

#include <memory>
#include <vector>

namespace exporter {

class StateSizes;

/// A sequence of calls of an artifact with state, each from where the one before it ended.
///
///     exporter::Stream stream = artifact.stream();
///     for (const at::Tensor& chunk : chunks) play(stream.run({chunk})[0]);
///
/// It refers to the artifact, which must outlive it and may not be moved meanwhile. Where the
/// caller has the state, streams are independent of one another, and each serves one thread; where
/// the artifact keeps it, all of its streams and calls share that one state.
class Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  /// As `Artifact::run`, but takes the inputs and returns the outputs without the state's. The
  /// state is made for the sizes of the first call. Throws Error(contract) also for a later call at
  /// another size that the state follows, such as another batch. A call that throws leaves a state
  /// that the caller has as it was.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs);

  /// Begins another sequence, from the initial state.
  void reset();

 private:
  friend class Artifact;
  explicit Stream(const Artifact& artifact);

  const Artifact* artifact_;
  std::unique_ptr<StateSizes> sizes_;
  std::vector<at::Tensor> state_;  // of the caller's; none before the first call
};

}  // namespace exporter
