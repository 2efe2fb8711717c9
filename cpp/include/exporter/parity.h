#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace exporter {

/// The error limits, fixed when the golden was made, before anything was measured.
struct Tolerance {
  double rtol = 1e-4;
  double atol = 1e-5;
  double k = 2.0;  ///< the error may be up to this multiple of eager's error
  /// An output with at least this cosine similarity, and a relative error that fits it, passes too,
  /// as `quantized`.
  std::optional<double> min_cosine = std::nullopt;
  /// The output's typical size, from `typical_sizes`; 0 if unknown. It only counts with
  /// `min_cosine`, for cases in which the output has few elements and is smaller.
  double typical = 0;
};

/// Returns, by output, the median of its root mean square over the cases in which it has few
/// elements; 0 for an output without such cases. `references` holds the outputs of each case.
std::vector<double> typical_sizes(const std::vector<std::vector<at::Tensor>>& references);

/// From best to worst.
enum class Verdict { exact, rounding, drift, quantized, fail };

/// "exact", "rounding", "drift", "quantized" or "FAIL".
const char* to_string(Verdict verdict);

/// The comparison of one output of one case. A metric that cannot be computed is missing.
struct OutputParity {
  std::string output;
  Verdict verdict = Verdict::exact;
  std::string reason;  ///< reason of a FAIL; empty otherwise
  std::optional<double> max_abs;
  std::optional<double> max_rel;
  std::optional<double> rmse;
  std::optional<double> eager_rmse;
  std::optional<double> rmse_ratio;
  std::optional<double> cosine;
  std::vector<std::int64_t> worst;  ///< index of the worst element
  /// Cause of a failure, if known: "not-a-number" (eager itself returns NaN), "too-coarse" (int8).
  std::string cause;
};

/// Judges one output by the rule in docs/formats.md. `actual` is the artifact's output, `eager` and
/// `reference` are the golden's. They may be on any device. All have one shape; a different shape
/// of `actual` is a FAIL. Throws Error(golden) if `eager` and `reference` differ in shape or only
/// one is complex, Error(runtime) if torch cannot compute with a dtype.
OutputParity compare(const std::string& name, const at::Tensor& actual, const at::Tensor& eager,
                     const at::Tensor& reference, const Tolerance& tolerance);

/// Compares one output of an artifact that stores its weights in fewer bytes, by the same rule:
/// with the original weights' `reference` and, in the tolerance of float32, with `stored`, the
/// outputs of the stored weights in float64.
OutputParity compare_stored(const std::string& name, const at::Tensor& actual,
                            const at::Tensor& eager, const at::Tensor& reference,
                            const at::Tensor& stored, const Tolerance& tolerance);

}  // namespace exporter
