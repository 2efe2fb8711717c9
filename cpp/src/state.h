#pragma once

#include <exporter/contract.h>

#include <span>

#include "expression.h"

namespace exporter {

/// Returns the sizes in a call with these inputs, which exclude the state's. Throws Error(contract)
/// if they do not fit.
KnownSizes sizes_of(const Contract& contract, std::span<const at::Tensor> own_inputs);

/// Returns a tensor of the state before the first call, as a new tensor on the CPU. Throws
/// Error(contract) if a size that its shape depends on is not known.
at::Tensor initial_tensor(const Contract& contract, const State::Tensor& tensor,
                          const KnownSizes& sizes);

/// The sizes that a state was made for in its first call.
class StateSizes {
 public:
  /// Stores the sizes of the first call. Throws Error(contract) if a later call changes a size that
  /// the state's shape depends on. `own_inputs` exclude the state's tensors.
  void require(const Contract& contract, std::span<const at::Tensor> own_inputs);

  /// Makes the next call a first one.
  void forget() { known_.clear(); }

 private:
  KnownSizes known_;
};

}  // namespace exporter
