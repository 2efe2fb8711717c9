#pragma once

#include <exporter/contract.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace exporter {

/// The size of each of a contract's symbols, where it is known.
using KnownSizes = std::vector<std::optional<std::int64_t>>;

/// The sizes in a call with these inputs, which are those without the state's. Throws
/// Error(contract) when they do not fit.
KnownSizes sizes_of(const Contract& contract, std::span<const at::Tensor> own_inputs);

/// A tensor of the state before the first call, on the CPU and with memory of its own. Throws
/// Error(contract) when a size that its shape follows is not known.
at::Tensor initial_tensor(const Contract& contract, const State::Tensor& tensor,
                          const KnownSizes& sizes);

/// The sizes that a state has from its first call on.
class StateSizes {
 public:
  /// Takes the sizes of a first call, and throws Error(contract) for a later one at others, as far
  /// as the state's shapes follow them. `own_inputs` are those without the state's.
  void require(const Contract& contract, std::span<const at::Tensor> own_inputs);

  /// The next call is a first one.
  void forget() { known_.clear(); }

 private:
  KnownSizes known_;
};

}  // namespace exporter
