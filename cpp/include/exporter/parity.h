#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

/// How near is near enough; fixed when the golden was made, before anything was measured.
struct Tolerance {
  double rtol = 1e-4;
  double atol = 1e-5;
  double k = 2.0;  ///< the error may be this many times eager's own
  /// An output that is as near as this by its direction passes too, as `quantized`.
  std::optional<double> min_cosine = std::nullopt;
};

/// From best to worst.
enum class Verdict { exact, rounding, drift, quantized, fail };

/// "exact", "rounding", "drift", "quantized" or "FAIL".
const char* to_string(Verdict verdict);

/// One output of one case, compared. A number that cannot be computed is missing.
struct OutputParity {
  std::string output;
  Verdict verdict = Verdict::exact;
  std::string reason;  ///< why it is FAIL; empty otherwise
  std::optional<double> max_abs;
  std::optional<double> max_rel;
  std::optional<double> rmse;
  std::optional<double> eager_rmse;
  std::optional<double> rmse_ratio;
  std::optional<double> cosine;
  std::vector<std::int64_t> worst;  ///< index of the worst element
  /// Of a failure, where it is known: "not-a-number" (eager itself gives NaN), "too-coarse" (int8).
  std::string cause;
};

/// Judges one output by the rule in docs/formats.md. `actual` is the artifact's output, `eager` and
/// `reference` are the golden's; all of one shape (another shape of `actual` is a FAIL), on any
/// device. Throws Error(golden) when `eager` and `reference` differ in shape or only one is
/// complex, Error(runtime) when torch cannot compute with a dtype.
OutputParity compare(const std::string& name, const at::Tensor& actual, const at::Tensor& eager,
                     const at::Tensor& reference, const Tolerance& tolerance);

}  // namespace exporter
