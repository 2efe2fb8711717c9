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

/// A variable size, with the inclusive range that the artifact was exported for.
struct Symbol {
  std::string name;
  std::int64_t min;
  std::int64_t max;
  /// The only allowed sizes, with one entry of the artifact for each. Empty allows the whole range.
  std::vector<std::int64_t> choices = {};
  /// The step: only multiples of it are allowed.
  std::int64_t multiple_of = 1;
  /// The size that a program without exporter's contract was exported with.
  std::optional<std::int64_t> hint = std::nullopt;

  bool allows(std::int64_t size) const;

  /// Returns the smallest allowed size, which is at least 0.
  std::int64_t smallest() const;

  /// Returns the hint, or the smallest size if there is none or it is not allowed.
  std::int64_t example() const;
};

/// Sizes by symbol name, such as {{"batch", 8}}.
using Sizes = std::map<std::string, std::int64_t>;

/// Tensors by the name of a contract's input or output.
using NamedTensors = std::map<std::string, at::Tensor>;

/// A dimension that may have any size.
struct AnySize {
  bool operator==(const AnySize&) const = default;
};

/// A dimension with a fixed size.
struct FixedSize {
  std::int64_t size = 0;

  bool operator==(const FixedSize&) const = default;
};

/// A dimension with the size of a symbol.
struct SymbolSize {
  std::size_t symbol = 0;  ///< index into Contract::symbols

  bool operator==(const SymbolSize&) const = default;
};

/// A size computed from the sizes of symbols: (factor * size + offset) / divisor, rounded down. If
/// it depends on a sum of several symbols, such as `past+seq`, `others` has the further ones.
struct Expression {
  /// A symbol with its factor.
  struct Term {
    std::size_t symbol = 0;   ///< index into Contract::symbols
    std::int64_t factor = 1;  ///< positive

    bool operator==(const Term&) const = default;
  };

  std::size_t symbol = 0;         ///< index into Contract::symbols
  std::int64_t factor = 1;        ///< positive
  std::int64_t offset = 0;        ///< may be negative
  std::int64_t divisor = 1;       ///< positive
  std::vector<Term> others = {};  ///< added to factor * size; the names are in alphabetical order

  /// Returns the value for this size of the symbol. The expression must depend on only one.
  std::int64_t at(std::int64_t size) const;

  /// Returns the value for the sizes of all of the contract's symbols, in their order.
  std::int64_t at(std::span<const std::int64_t> sizes) const;

  bool operator==(const Expression&) const = default;
};

using Dimension = std::variant<AnySize, FixedSize, SymbolSize, Expression>;

/// Name, dtype and shape of one input or output.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype;
  std::vector<Dimension> shape;
};

/// The state that one call passes to the next.
struct State {
  /// Where the state is kept between calls: inside the artifact, or outside, by the caller, who
  /// passes it as the last inputs and receives it as the last outputs, both named `state.NAME`.
  enum class Kept { inside, outside };

  struct Tensor {
    TensorSpec spec;  ///< the name has no `state.` prefix
    /// On the CPU. Broadcasts to the shape; dimensions that depend on a symbol have size 1.
    at::Tensor initial;
  };

  Kept kept;
  std::vector<Tensor> tensors;
};

/// The hardware and software that an artifact's machine code was built for and with.
struct Build {
  std::vector<std::string> isa;  ///< instruction sets that it may use, as Linux names them
  std::string level;             ///< the level that they form, such as "x86-64-v3"; may be empty
  std::string capability;        ///< compute capability of the GPU, such as "9.0"; may be empty
  std::string cuda;              ///< CUDA version; may be empty
  std::string driver;            ///< NVIDIA driver version; may be empty

  /// Returns whether the kernels run on a GPU of this compute capability. Kernels for 8.0 run on
  /// 8.6; from 9.0 on, kernels run on exactly one capability.
  bool runs_on(int major, int minor) const;
};

/// Names, dtypes and shapes of an artifact's inputs and outputs (docs/formats.md, schema 2).
struct Contract {
  std::string model;
  std::string target;  ///< the route that made the artifact, such as "trace"
  std::string device;  ///< "cpu" or "cuda"
  std::string torch;   ///< torch version that exported it; may be empty
  /// Precision of the computation: "fp32" (the model's own), "tf32", "bf16", "fp16", "int8",
  /// or "fp16w" or "int8w", which compute in float32 with weights in fewer bytes.
  /// Layers that compute in float32 follow, as in "int8+fp32:head".
  std::string precision = "fp32";
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Symbol> symbols;
  /// Namespaces of operators outside torch's own that the artifact calls, such as "torchvision".
  std::vector<std::string> operators;
  /// Set if the artifact holds machine code and is recent enough to record it.
  std::optional<Build> build;
  /// Set if a call affects the results of the next.
  std::optional<State> state;
  /// Sizes for which the package holds a separate model, which calls at these sizes run. Each has
  /// the same symbols.
  std::vector<Sizes> entries;

  /// Reads a contract from JSON. Throws Error(artifact), with a message that starts with `where`,
  /// if the text is not a contract or has another schema.
  static Contract parse(std::string_view json, std::string_view where);

  /// Returns whether the artifact keeps its state, so that equal inputs may give other outputs.
  bool keeps_state() const { return state && state->kept == State::Kept::inside; }

  /// Returns the input or output of this name. Throws Error(contract), listing the known names, for
  /// an unknown one.
  const TensorSpec& input(std::string_view name) const;
  const TensorSpec& output(std::string_view name) const;

  /// Puts named inputs into the contract's order. An omitted `state.NAME` is the initial state.
  /// Throws Error(contract) for a missing or unknown name.
  std::vector<at::Tensor> arrange(NamedTensors inputs) const;

  /// Returns inputs that fit the contract, on the CPU: zeros, and the initial state if the caller
  /// keeps it. A symbol missing from `sizes` has the size of `Symbol::example`, and an
  /// unconstrained dimension has size 1. Throws Error(contract) for an unknown symbol or a size
  /// that is not allowed.
  std::vector<at::Tensor> example_inputs(const Sizes& sizes = {}) const;

  /// Number of inputs or outputs without the state's tensors, which come last.
  std::size_t own_inputs() const;
  std::size_t own_outputs() const;

  /// Returns the state before the first call as new tensors on the CPU; none if there is no state.
  /// `inputs` excludes the state's tensors and sets the sizes. Throws Error(contract) if the inputs
  /// do not fit or do not determine a size of the state.
  std::vector<at::Tensor> initial_state(std::span<const at::Tensor> inputs) const;

  /// Throws Error(contract) unless `inputs` fit. Checks their number; then the dtype, rank, fixed
  /// sizes, ranges, steps and equal symbols of each; then the sizes computed from symbols. Takes
  /// well under a microsecond per tensor and does not read the values.
  void check(std::span<const at::Tensor> inputs) const;
};

/// Returns torch's name of a dtype, such as "int64".
std::string dtype_name(at::ScalarType dtype);

/// Returns the dtype with this torch name, or nothing if the name is unknown.
std::optional<at::ScalarType> dtype_from_name(std::string_view name);

/// Returns a shape as text, such as "[batch, 2*sequence+1, 768]"; `?` stands for any size.
std::string describe_shape(const TensorSpec& spec, const Contract& contract);

/// Returns the allowed sizes of a symbol as text, such as "1 to 64", "1, 8 or 32" or "32 to 512,
/// multiples of 2".
std::string describe_range(const Symbol& symbol);

}  // namespace exporter
