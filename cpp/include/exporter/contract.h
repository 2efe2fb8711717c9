#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace exporter {

/// A size that varies, with the range that the artifact was exported for (both ends included).
struct Symbol {
  std::string name;
  std::int64_t min;
  std::int64_t max;
  /// The sizes that alone it may have, one entry of the artifact for each; empty: all of the range.
  std::vector<std::int64_t> choices = {};
  /// Its step: only multiples of this are allowed.
  std::int64_t multiple_of = 1;

  bool allows(std::int64_t size) const;

  /// The smallest size that it may have, and 0 at least.
  std::int64_t smallest() const;
};

/// Sizes by the names of their symbols, such as {{"batch", 8}}.
using Sizes = std::map<std::string, std::int64_t>;

/// Tensors by the names of a contract's inputs or outputs.
using NamedTensors = std::map<std::string, at::Tensor>;

/// A dimension that may have any size.
struct AnySize {
  bool operator==(const AnySize&) const = default;
};

/// A dimension of one size.
struct FixedSize {
  std::int64_t size = 0;

  bool operator==(const FixedSize&) const = default;
};

/// A dimension that has a symbol's size.
struct SymbolSize {
  std::size_t symbol = 0;  ///< index into Contract::symbols

  bool operator==(const SymbolSize&) const = default;
};

/// A size that follows from a symbol's: (factor * size + offset) / divisor, rounded down.
struct Expression {
  std::size_t symbol = 0;    ///< index into Contract::symbols
  std::int64_t factor = 1;   ///< positive
  std::int64_t offset = 0;   ///< of any sign
  std::int64_t divisor = 1;  ///< positive

  /// Its value where the symbol has this size.
  std::int64_t at(std::int64_t size) const;

  bool operator==(const Expression&) const = default;
};

using Dimension = std::variant<AnySize, FixedSize, SymbolSize, Expression>;

/// What is promised about one input or output.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype;
  std::vector<Dimension> shape;
};

/// What one call leaves behind for the next.
struct State {
  /// Who has it between calls: the artifact, or the caller, who passes it as the last inputs and
  /// gets it back as the last outputs, both named `state.NAME`.
  enum class Kept { inside, outside };

  struct Tensor {
    TensorSpec spec;  ///< its name is without `state.`
    at::Tensor
        initial;  ///< on the CPU; broadcasts to the shape, with 1 where that follows a symbol
  };

  Kept kept;
  std::vector<Tensor> tensors;
};

/// What the machine code in an artifact was built for, and with.
struct Build {
  std::vector<std::string> isa;  ///< instruction sets that it may use, as Linux names them
  std::string level;             ///< what they are together, such as "x86-64-v3"; may be empty
  std::string capability;        ///< compute capability of the GPU, such as "9.0"; may be empty
  std::string cuda;              ///< version of CUDA; may be empty
  std::string driver;            ///< version of NVIDIA's driver; may be empty

  /// Whether its kernels run on a GPU of this compute capability. Those for 8.0 run on 8.6; from
  /// 9.0 on they are for one capability alone.
  bool runs_on(int major, int minor) const;
};

/// Names, dtypes and shapes of an artifact's inputs and outputs (docs/formats.md, schema 2).
struct Contract {
  std::string model;
  std::string target;  ///< the route that made the artifact, such as "trace"
  std::string device;  ///< "cpu" or "cuda"
  std::string torch;   ///< version that exported it; may be empty
  /// What it computes in: "fp32" (the model's own), "tf32", "bf16", "fp16" or "int8".
  std::string precision = "fp32";
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Symbol> symbols;
  /// Namespaces of operators outside torch's own that the artifact calls, such as "torchvision".
  std::vector<std::string> operators;
  /// Where the artifact holds machine code, and was made since that is recorded.
  std::optional<Build> build;
  /// Where a call changes what the next gives.
  std::optional<State> state;

  /// Reads a contract from JSON. Throws Error(artifact), with `where` as its first words, when the
  /// text is not a contract or has another schema.
  static Contract parse(std::string_view json, std::string_view where);

  /// Whether the artifact itself has a state, so that the same inputs give other outputs next time.
  bool keeps_state() const { return state && state->kept == State::Kept::inside; }

  /// The input, or output, of this name. Throws Error(contract), with the names that there are.
  const TensorSpec& input(std::string_view name) const;
  const TensorSpec& output(std::string_view name) const;

  /// Inputs by name, in the contract's order; `state.NAME` that is left out is the initial state.
  /// Throws Error(contract) for a name that is missing or that the contract has not.
  std::vector<at::Tensor> arrange(NamedTensors inputs) const;

  /// Inputs that fit the contract, on the CPU: zeros, and the initial state where the caller has
  /// it. A symbol that `sizes` leaves out has its smallest size, a dimension that may be anything
  /// has 1. Throws Error(contract) for a symbol or a size that the contract has not.
  std::vector<at::Tensor> example_inputs(const Sizes& sizes = {}) const;

  /// How many inputs, and outputs, there are without the state's, which are the last.
  std::size_t own_inputs() const;
  std::size_t own_outputs() const;

  /// The state before the first call, for the sizes of these inputs, which are those without the
  /// state's: new tensors on the CPU, none where there is no state. Throws Error(contract) when the
  /// inputs do not fit, or do not tell a size that the state has.
  std::vector<at::Tensor> initial_state(std::span<const at::Tensor> inputs) const;

  /// Throws Error(contract) unless `inputs` fit: their number; then dtype, rank, fixed sizes,
  /// ranges, steps and equal symbols of each; then what follows from symbols. Takes well under a
  /// microsecond a tensor; the values are not looked at.
  void check(std::span<const at::Tensor> inputs) const;
};

/// torch's name of a dtype, such as "int64".
std::string dtype_name(at::ScalarType dtype);

/// A dtype by torch's name; nothing for an unknown one.
std::optional<at::ScalarType> dtype_from_name(std::string_view name);

/// A shape as text, such as "[batch, 2*sequence+1, 768]"; `?` stands for anything.
std::string describe_shape(const TensorSpec& spec, const Contract& contract);

/// The sizes that a symbol may have, such as "1 to 64", "1, 8 or 32" or "32 to 512, multiples of
/// 2".
std::string describe_range(const Symbol& symbol);

}  // namespace exporter
