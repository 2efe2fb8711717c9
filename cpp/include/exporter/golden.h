#pragma once

#include <ATen/core/Tensor.h>
#include <exporter/contract.h>
#include <exporter/parity.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

/// Inputs with the outputs that eager gives for them; tensors on the CPU, in the contract's order.
struct GoldenCase {
  std::string name;  ///< such as "batch=1 sequence=14"
  std::int64_t seed;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> eager;      ///< in eager's own dtype, computed in the precision read for
  std::vector<at::Tensor> reference;  ///< float64 where eager is floating, else as in eager
  /// Which call of a sequence it is: 0 begins from the initial state, others go on from the case
  /// before. Where the caller has the state, others have the inputs without it. Without a step, the
  /// case stands alone.
  std::optional<std::int64_t> step;
  Sizes sizes;  ///< of the symbols; some may be missing
};

/// Cases, with the tolerance that was fixed for them (docs/formats.md, schema 3). The first case is
/// the example: the one that is timed. There is at least one.
struct Golden {
  Tolerance tolerance;
  std::vector<GoldenCase> cases;

  /// What artifacts of one precision are judged by. Throws Error(golden) when the file is missing,
  /// broken, of another schema or made without that precision, or when a reference does not fit
  /// eager's output in shape or dtype.
  static Golden read(const std::filesystem::path& path, const std::string& precision = "fp32");
};

/// Reads a safetensors file with the contract's names. Returns the tensors in the contract's order;
/// `state.NAME` that the file leaves out is the initial state. Throws Error(golden) when the file
/// cannot be read, Error(contract) for missing or unknown names.
std::vector<at::Tensor> read_inputs(const std::filesystem::path& path, const Contract& contract);

/// Writes a safetensors file of the contract's names. The file is complete or is not there. Throws
/// Error(io) when it cannot be written, Error(contract) when the outputs are not as many as the
/// contract has.
void write_outputs(const std::filesystem::path& path, const std::vector<at::Tensor>& outputs,
                   const Contract& contract);

}  // namespace exporter
