#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/contract.h>
#include <exporter/parity.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

/// Inputs with eager's outputs for them. Tensors are on the CPU, in the contract's order.
struct GoldenCase {
  std::string name;  ///< such as "batch=1 sequence=14"
  std::int64_t seed;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> eager;      ///< in eager's own dtype, computed in the precision asked for
  std::vector<at::Tensor> reference;  ///< float64 if eager is floating point, else eager's dtype
  /// Position of the call in a sequence: 0 starts from the initial state, and later calls continue
  /// from the previous case. If the caller keeps the state, the inputs of later calls exclude it. A
  /// case without a step is independent.
  std::optional<std::int64_t> step;
  Sizes sizes;  ///< of the symbols; some may be missing
  /// With the weights that the precision stores in fewer bytes: like `reference`; empty for others.
  std::vector<at::Tensor> stored = {};
};

/// Cases and their tolerances (docs/formats.md, schema 3). There is at least one case; the first is
/// the example, which is the one that is timed.
struct Golden {
  Tolerance tolerance;
  std::vector<GoldenCase> cases;
  /// Of outputs in other dtypes than the one that `tolerance` is for, by dtype.
  std::map<std::string, Tolerance> tolerances = {};

  /// Returns the tolerance for an output of which this is eager's.
  const Tolerance& tolerance_of(const at::Tensor& eager) const;

  /// Reads the cases and the tolerances for artifacts of one precision. Throws Error(golden) if the
  /// file is missing, broken, has another schema or lacks that precision, or if the shape or dtype
  /// of a reference does not fit eager's output.
  static Golden read(const std::filesystem::path& path, const std::string& precision = "fp32");
};

/// Reads a safetensors file that uses the contract's input names. Returns the tensors in the
/// contract's order; a `state.NAME` missing from the file is the initial state. Throws
/// Error(golden) if the file cannot be read, Error(contract) for missing or unknown names.
std::vector<at::Tensor> read_inputs(const std::filesystem::path& path, const Contract& contract);

/// Writes a safetensors file that uses the contract's output names. The write is atomic: no partial
/// file appears. A symbolic link stays, and its target is replaced; a pipe or a device is written
/// to. Throws Error(io) if the file cannot be written, Error(contract) if the number of
/// outputs differs from the contract's.
void write_outputs(const std::filesystem::path& path, const std::vector<at::Tensor>& outputs,
                   const Contract& contract);

}  // namespace exporter
