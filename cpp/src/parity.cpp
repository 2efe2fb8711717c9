// The rule is in docs/formats.md; numbers in comments are its steps.

#include <ATen/ATen.h>
#include <exporter/contract.h>
#include <exporter/error.h>
#include <exporter/parity.h>

#include <cmath>
#include <cstdio>

namespace exporter {
namespace {

/// Three outputs as contiguous float64 on the CPU.
struct Values {
  const double* actual;
  const double* eager;
  const double* reference;
  std::int64_t size;
};

/// What one pass over the finite elements gives.
struct Sums {
  std::int64_t count = 0;
  bool equal = true;
  double max_abs = 0, max_rel = 0;
  double worst_excess = -1;
  std::int64_t worst = 0;
  double square = 0, eager_square = 0;  // of the errors
  double actual_square = 0, reference_square = 0, product = 0;
};

std::string shape_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::vector<std::int64_t> unravel(std::int64_t flat, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  return index;
}

OutputParity failure(OutputParity result, std::string reason) {
  result.verdict = Verdict::fail;
  result.reason = std::move(reason);
  return result;
}

/// Step 2.
OutputParity compare_integers(OutputParity result, const at::Tensor& actual,
                              const at::Tensor& eager) {
  result.max_abs = 0;
  const at::Tensor differs = actual.ne(eager).flatten();
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return result;
  result.max_abs = (actual.to(at::kDouble) - eager.to(at::kDouble)).abs().max().item<double>();
  result.worst = unravel(differs.to(at::kByte).argmax().item<std::int64_t>(), actual.sizes());
  return failure(std::move(result), std::to_string(count) + " of " +
                                        std::to_string(actual.numel()) + " values differ");
}

/// 0 for a finite number, and another code for NaN, +Inf and -Inf each.
int special(double value) {
  if (std::isfinite(value)) return 0;
  return std::isnan(value) ? 1 : (value > 0 ? 2 : 3);
}

/// Step 3: the first element that is NaN or infinite in one and not in the other; -1 when none is.
std::int64_t special_mismatch(const Values& values) {
  for (std::int64_t i = 0; i < values.size; ++i) {
    if (special(values.actual[i]) != special(values.eager[i])) return i;
  }
  return -1;
}

double keep_nan_max(double a, double b) { return std::isnan(b) || b > a ? b : a; }

Sums accumulate(const Values& values, const Tolerance& tolerance) {
  Sums sums;
  for (std::int64_t i = 0; i < values.size; ++i) {
    const double y = values.actual[i], e = values.eager[i], r = values.reference[i];
    if (!std::isfinite(y)) continue;
    const double d = std::abs(y - r);
    const double excess = d / (tolerance.atol + tolerance.rtol * std::abs(r));
    if (std::isnan(excess) ? !std::isnan(sums.worst_excess) : excess > sums.worst_excess) {
      sums.worst_excess = excess;
      sums.worst = i;
    }
    ++sums.count;
    sums.equal = sums.equal && y == e;
    sums.max_abs = keep_nan_max(sums.max_abs, d);
    sums.max_rel = keep_nan_max(sums.max_rel, d / std::max(std::abs(r), tolerance.atol));
    sums.square += d * d;
    sums.eager_square += (e - r) * (e - r);
    sums.actual_square += y * y;
    sums.reference_square += r * r;
    sums.product += y * r;
  }
  return sums;
}

double cosine(const Sums& sums) {
  if (sums.actual_square == 0 && sums.reference_square == 0) return 1;
  const double norms = std::sqrt(sums.actual_square) * std::sqrt(sums.reference_square);
  return norms == 0 ? 0 : sums.product / norms;
}

/// Step 5.
Verdict judge(const Sums& sums, double rmse, double eager_rmse, const Tolerance& tolerance) {
  if (sums.equal) return Verdict::exact;
  if (sums.worst_excess <= 1) return Verdict::rounding;
  const double rms = std::sqrt(sums.reference_square / static_cast<double>(sums.count));
  const double tol = tolerance.atol + tolerance.rtol * rms;
  return rmse <= tolerance.k * eager_rmse + tol / 10 ? Verdict::drift : Verdict::fail;
}

/// Steps 4 and 5.
OutputParity compare_floats(OutputParity result, const Values& values, at::IntArrayRef sizes,
                            const Tolerance& tolerance) {
  const Sums sums = accumulate(values, tolerance);
  result.max_abs = sums.max_abs;
  if (sums.count == 0) return result;
  const auto count = static_cast<double>(sums.count);
  result.max_rel = sums.max_rel;
  result.rmse = std::sqrt(sums.square / count);
  result.eager_rmse = std::sqrt(sums.eager_square / count);
  if (*result.eager_rmse != 0) {
    result.rmse_ratio = *result.rmse / *result.eager_rmse;
  } else if (*result.rmse == 0) {
    result.rmse_ratio = 1;
  }
  result.cosine = cosine(sums);
  result.worst = unravel(sums.worst, sizes);
  result.verdict = judge(sums, *result.rmse, *result.eager_rmse, tolerance);
  if (result.verdict == Verdict::fail) {
    result.reason = short_number(values.actual[sums.worst]) + " where the reference is " +
                    short_number(values.reference[sums.worst]) + " at " + shape_text(result.worst);
  }
  return result;
}

/// Complex numbers become pairs of floats, in one more dimension.
at::Tensor as_doubles(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return (host.is_complex() ? at::view_as_real(host.resolve_conj()) : host)
      .to(at::kDouble)
      .contiguous();
}

}  // namespace

const char* to_string(Verdict verdict) {
  constexpr const char* kNames[] = {"exact", "rounding", "drift", "FAIL"};
  return kNames[static_cast<int>(verdict)];
}

OutputParity compare(const std::string& name, const at::Tensor& actual, const at::Tensor& eager,
                     const at::Tensor& reference, const Tolerance& tolerance) {
  if (reference.sizes() != eager.sizes()) {
    throw Error(ErrorKind::golden, name + ": the reference's shape is not eager's");
  }
  OutputParity result;
  result.output = name;
  if (actual.sizes() != eager.sizes()) {  // step 1
    return failure(std::move(result), "shape " + shape_text(actual.sizes()) + ", expected " +
                                          shape_text(eager.sizes()));
  }
  if (actual.scalar_type() != eager.scalar_type()) {
    return failure(std::move(result), "dtype " + dtype_name(actual.scalar_type()) + ", expected " +
                                          dtype_name(eager.scalar_type()));
  }
  if (!eager.is_floating_point() && !eager.is_complex()) {
    return compare_integers(std::move(result), actual.cpu(), eager.cpu());
  }
  const at::Tensor y = as_doubles(actual), e = as_doubles(eager), r = as_doubles(reference);
  const Values values{y.const_data_ptr<double>(), e.const_data_ptr<double>(),
                      r.const_data_ptr<double>(), y.numel()};
  const std::int64_t mismatch = special_mismatch(values);
  if (mismatch >= 0) {
    result.worst = unravel(mismatch, y.sizes());
    const std::string where = shape_text(result.worst);
    return failure(std::move(result), short_number(values.actual[mismatch]) +
                                          " where eager gives " +
                                          short_number(values.eager[mismatch]) + " at " + where);
  }
  return compare_floats(std::move(result), values, y.sizes(), tolerance);
}

}  // namespace exporter
