// Implements the parity rule of docs/formats.md; "step N" in comments refers to its steps.

#include <ATen/ATen.h>
#include <exporter/contract.h>
#include <exporter/error.h>
#include <exporter/parity.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "guard.h"

namespace exporter {
namespace {

constexpr double kTiny = 1e-300;  // replaces a divisor of 0
constexpr int kFar = 13;          // least binary exponent of an extreme element
constexpr int kGap = 7;           // by how much it is above that of the next smaller element
constexpr double kNoise = 0.3;  // of a group's rms; a larger error is not eager's rounding, unless
                                // the values cancel out
constexpr double kCancels = 0.1;  // of a group's rms; a smaller error leaves significant values
constexpr double kUnits = 100;    // by how much the error of cancelling values may differ from the
                                  // rounding of the largest value
constexpr double kSame = 0.05;    // of a group's rms; values that differ more from eager's are
                                  // never the same
constexpr double kSlack = 1.5;    // how many times the error of the least cosine is allowed
constexpr double kAlone = 3;      // the same for a single value, whose cosine says only its sign
constexpr std::int64_t kFew = 8;  // elements of an output, which may all be near zero by chance
constexpr double kClear = 0.1;  // lead of a clear winner over the second, relative to a row's range

/// Three outputs as contiguous float64 on the CPU.
struct Values {
  const double* actual;
  const double* eager;
  const double* reference;
  std::int64_t size;
  double epsilon;  // of eager's dtype
};

/// Sums over some of the finite elements.
struct Group {
  std::int64_t count = 0, eager_count = 0;  // eager_count: elements where eager is finite too
  bool within = true;                       // whether d is within tolerance everywhere
  double square = 0, eager_square = 0;      // sums of squared errors
  double apart_square = 0;                  // sum of the squares of y - e
  double actual_square = 0, reference_square = 0, product = 0;
  bool cancels = false;  // whether the values are what remains of larger ones

  void add(double y, double e, double r, double allowed) {
    const double d = std::abs(y - r);
    ++count;
    within = within && d <= allowed;
    square += d * d;
    if (std::isfinite(e)) {
      ++eager_count;
      eager_square += (e - r) * (e - r);
      apart_square += (y - e) * (y - e);
    }
    actual_square += y * y;
    reference_square += r * r;
    product += y * r;
  }

  double rmse() const { return std::sqrt(square / static_cast<double>(count)); }
  double eager_rmse() const {
    return eager_count == 0 ? 0 : std::sqrt(eager_square / static_cast<double>(eager_count));
  }
  double reference_rms() const { return std::sqrt(reference_square / static_cast<double>(count)); }
  /// 1 if both are zero, 0 if one is or if squares overflow.
  double cosine() const {
    if (actual_square == 0 && reference_square == 0) return 1;
    const double norms = std::sqrt(actual_square) * std::sqrt(reference_square);
    const double found = norms == 0 ? 0 : product / norms;
    return std::isfinite(found) ? found : 0;
  }
};

/// The result of one pass over the finite elements.
struct Sums {
  bool equal = true;  // whether y == e everywhere
  double max_abs = 0, max_rel = 0;
  double worst_excess = -1;
  std::int64_t worst = 0;
  Group all;
  std::vector<Group> groups;  // the usual elements, and extreme ones; without empty groups
};

std::string shape_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const auto size : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string number(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

/// Shows both numbers with 6 digits, or with all of them if they look the same otherwise.
std::string difference(double actual, double reference) {
  const int digits = number(actual, 6) == number(reference, 6) ? 17 : 6;
  return number(actual, digits) + " where the reference is " + number(reference, digits);
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

std::optional<std::int64_t> first_nan(const double* values, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    if (std::isnan(values[i])) return i;
  }
  return std::nullopt;
}

/// Returns the first element that is infinite in the output or the reference and differs.
std::optional<std::int64_t> first_other_infinity(const Values& values) {
  for (std::int64_t i = 0; i < values.size; ++i) {
    const double y = values.actual[i], r = values.reference[i];
    if ((std::isinf(y) || std::isinf(r)) && y != r) return i;
  }
  return std::nullopt;
}

/// Step 3: fails `result` if there is a NaN anywhere, or an infinity that differs from the
/// reference. Returns whether it failed.
bool fail_specials(OutputParity& result, const Values& values, at::IntArrayRef sizes) {
  const auto fail = [&](const char* what, std::int64_t at, const std::string& why) {
    result.verdict = Verdict::fail;
    result.worst = unravel(at, sizes);
    result.reason = std::string(what) + " at " + shape_text(result.worst) + why;
    return true;
  };
  for (const double* one : {values.eager, values.reference, values.actual}) {
    const auto at = first_nan(one, values.size);
    if (!at) continue;
    if (one == values.actual) return fail("NaN", *at, "");
    result.cause = "not-a-number";
    return fail("NaN", *at, ": eager itself returns NaN");
  }
  const auto at = first_other_infinity(values);
  return at && fail("Inf", *at, ": " + difference(values.actual[*at], values.reference[*at]));
}

/// Returns a distance relative to the allowed one: 1 is the limit. If nothing is allowed, because
/// the reference and --atol are 0, any distance is far above the limit.
double excess_of(double distance, double allowed) {
  return allowed > 0 ? distance / allowed : distance * 1e30;
}

/// Returns the binary exponent of a magnitude; those of magnitudes up to 1 count as the same.
int exponent_of(double magnitude) {
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  return std::max(exponent, 1);
}

/// Returns the least exponent of each group of extreme elements, such as the -1e9 of masked scores,
/// beside which no error of another element would count. A group begins above each gap.
std::vector<int> extreme_exponents(const Values& values) {
  std::array<bool, std::numeric_limits<double>::max_exponent + 1> taken{};
  for (std::int64_t i = 0; i < values.size; ++i) {
    if (std::isfinite(values.actual[i]))
      taken.at(static_cast<std::size_t>(exponent_of(std::abs(values.reference[i])))) = true;
  }
  std::vector<int> starts;
  int below = 1;
  for (int above = 1; above < static_cast<int>(taken.size()); ++above) {
    if (!taken.at(static_cast<std::size_t>(above))) continue;
    if (above >= kFar && above - below >= kGap) starts.push_back(above);
    below = above;
  }
  return starts;
}

Sums accumulate(const Values& values, const Tolerance& tolerance) {
  const std::vector<int> starts = extreme_exponents(values);
  Sums sums;
  std::vector<Group> groups(starts.size() + 1);
  double largest = 0;
  for (std::int64_t i = 0; i < values.size; ++i) {
    const double y = values.actual[i], e = values.eager[i], r = values.reference[i];
    if (!std::isfinite(y)) continue;  // then the reference is not finite either
    const double d = std::abs(y - r);
    const double allowed = tolerance.atol + tolerance.rtol * std::abs(r);
    const double excess = excess_of(d, allowed);
    if (excess > sums.worst_excess) {
      sums.worst_excess = excess;
      sums.worst = i;
    }
    sums.equal = sums.equal && y == e;
    sums.max_abs = std::max(sums.max_abs, d);
    sums.max_rel = std::max(sums.max_rel, d / std::max({std::abs(r), tolerance.atol, kTiny}));
    largest = std::max(largest, std::abs(r));
    const int exponent = exponent_of(std::abs(r));
    const auto group = std::upper_bound(starts.begin(), starts.end(), exponent) - starts.begin();
    groups[static_cast<std::size_t>(group)].add(y, e, r, allowed);
    sums.all.add(y, e, r, allowed);
  }
  const double unit = values.epsilon * largest;
  for (Group& group : groups) {
    if (group.count == 0) continue;
    const double own = group.eager_rmse();
    group.cancels =
        own > kCancels * group.reference_rms() && own >= unit / kUnits && own <= unit * kUnits;
    sums.groups.push_back(group);
  }
  return sums;
}

constexpr const char* kTooCoarse = "too-coarse";

/// Returns the least cosine, of all elements and of each group of significant ones.
double cosine(const Sums& sums) {
  double least = sums.all.cosine();
  for (const Group& group : sums.groups) {
    if (!group.cancels) least = std::min(least, group.cosine());
  }
  return least;
}

/// Returns whether elements are smaller than the output typically is, and their error is small for
/// its typical size. A few elements may be near zero by chance, where neither their cosine nor a
/// relative error says anything.
bool is_near_zero(const Sums& sums, std::int64_t size, const Tolerance& tolerance) {
  const Group& group = sums.all;
  if (!tolerance.min_cosine || size > kFew || sums.groups.size() != 1) return false;
  if (!(group.reference_rms() < tolerance.typical)) return false;
  const double most = std::sqrt(2 * (1 - *tolerance.min_cosine)) * tolerance.typical;
  return group.rmse() <= most + (tolerance.atol + tolerance.rtol * tolerance.typical) / 10;
}

/// Returns why elements do not pass by their cosine, or "". The cosine does not change if all
/// elements are multiplied by a number, so their relative error is limited too.
std::string too_coarse(const Sums& sums, const Tolerance& tolerance) {
  if (!tolerance.min_cosine) return "";
  char text[128];
  if (const double found = cosine(sums); found < *tolerance.min_cosine) {
    std::snprintf(text, sizeof text, "cosine %.4f, the minimum is %g", found,
                  *tolerance.min_cosine);
    return text;
  }
  const auto excess = [&](const Group& group) -> std::string {
    const double rms = group.reference_rms();
    const double most =
        (group.count > 1 ? kSlack : kAlone) * std::sqrt(2 * (1 - *tolerance.min_cosine)) * rms;
    const double limit = most + (tolerance.atol + tolerance.rtol * rms) / 10;
    if (group.rmse() <= limit) return "";
    std::snprintf(text, sizeof text,
                  "error %.3g where the output is %.3g (RMS), the maximum is %.3g", group.rmse(),
                  rms, limit);
    return text;
  };
  if (std::string found = excess(sums.all); !found.empty()) return found;
  for (const Group& group : sums.groups) {
    if (group.cancels || group.within) continue;
    if (std::string found = excess(group); !found.empty()) return found;
  }
  return "";
}

/// Returns whether the elements are as good as eager's; never if squares overflow.
bool is_as_good(const Group& group, const Tolerance& tolerance) {
  const double rms = group.reference_rms(), own = tolerance.k * group.eager_rmse();
  const double most = group.cancels ? own : std::min(own, kNoise * rms);
  const double limit = most + (tolerance.atol + tolerance.rtol * rms) / 10;
  return group.rmse() <= limit && std::isfinite(limit);
}

/// Returns whether eager's error is too large to be its rounding.
bool is_noisy(const Group& group) {
  return group.eager_rmse() > kNoise * group.reference_rms() && !group.cancels;
}

/// Returns whether the elements are eager's, but for rounding.
bool is_same(const Group& group, const Tolerance& tolerance) {
  const double most = std::min(kSame, tolerance.k * tolerance.rtol) * group.reference_rms();
  return group.eager_count == group.count &&
         std::sqrt(group.apart_square / static_cast<double>(group.count)) <= most;
}

/// Returns whether the elements are as good as eager's, or repeat an error of eager's that is no
/// rounding.
bool is_drift(const Group& group, const Tolerance& tolerance) {
  return is_as_good(group, tolerance) || (is_noisy(group) && is_same(group, tolerance));
}

/// Describes an error of eager's that is too large to be its rounding, and that failed the output
/// or that the output repeats.
std::string describe_noise(const Sums& sums, Verdict verdict, const Tolerance& tolerance) {
  if (verdict == Verdict::quantized) return "";
  const auto noisy = std::find_if(sums.groups.begin(), sums.groups.end(), [&](const Group& group) {
    return is_noisy(group) && !group.within && !is_as_good(group, tolerance);
  });
  if (noisy == sums.groups.end()) return "";
  char text[96];
  std::snprintf(text, sizeof text, "eager's error is %.3g where the output is %.3g (RMS)",
                noisy->eager_rmse(), noisy->reference_rms());
  if (verdict == Verdict::fail) return std::string("; ") + text;
  return std::string(text) + ", and the artifact returns the same as eager";
}

/// Step 5.
Verdict judge(const Sums& sums, std::int64_t size, const Tolerance& tolerance) {
  const auto all = [&](auto test) {
    return std::all_of(sums.groups.begin(), sums.groups.end(), test);
  };
  if (sums.equal) return Verdict::exact;
  if (all([](const Group& group) { return group.within; })) return Verdict::rounding;
  if (all([&](const Group& group) { return group.within || is_drift(group, tolerance); })) {
    return Verdict::drift;
  }
  if (!tolerance.min_cosine) return Verdict::fail;
  const bool passes = too_coarse(sums, tolerance).empty() || is_near_zero(sums, size, tolerance);
  return passes ? Verdict::quantized : Verdict::fail;
}

/// Returns whether the last dimension holds scores: an output named logits, or a classifier's only
/// output.
bool holds_scores(const std::string& name, std::size_t dimensions) {
  const bool logits = name == "logits" || name.ends_with(".logits");
  return dimensions > 1 && (logits || (name == "output" && dimensions == 2));
}

/// Step 6: counts the rows whose largest score changed although it led the second by more than
/// kClear of the row's range.
std::int64_t changed_winners(const Values& values, std::int64_t width) {
  std::int64_t changed = 0;
  for (std::int64_t row = 0; width > 1 && row < values.size; row += width) {
    const double *y = values.actual + row, *r = values.reference + row;
    std::vector<double> sorted(r, r + width);
    std::partial_sort(sorted.begin(), sorted.begin() + 2, sorted.end(), std::greater<>());
    const double range = sorted[0] - *std::min_element(sorted.begin(), sorted.end());
    if (sorted[0] - sorted[1] <= kClear * range) continue;
    changed += std::max_element(y, y + width) - y != std::max_element(r, r + width) - r;
  }
  return changed;
}

/// Steps 4 and 5.
OutputParity compare_floats(OutputParity result, const Values& values, at::IntArrayRef sizes,
                            const Tolerance& tolerance) {
  const Sums sums = accumulate(values, tolerance);
  result.max_abs = sums.max_abs;
  if (sums.groups.empty()) return result;
  result.max_rel = sums.max_rel;
  result.rmse = sums.groups[0].rmse();
  result.eager_rmse = sums.groups[0].eager_rmse();
  if (*result.eager_rmse != 0) {
    result.rmse_ratio = *result.rmse / *result.eager_rmse;
  } else if (*result.rmse == 0) {
    result.rmse_ratio = 1;
  }
  result.cosine = cosine(sums);
  result.worst = unravel(sums.worst, sizes);
  result.verdict = judge(sums, values.size, tolerance);
  if (result.verdict == Verdict::quantized && holds_scores(result.output, sizes.size())) {
    const auto changed = changed_winners(values, sizes.back());
    if (changed > 0) {
      result.cause = kTooCoarse;
      return failure(std::move(result),
                     "rows whose clear winner changed: " + std::to_string(changed));
    }
  }
  if (result.verdict == Verdict::quantized && !too_coarse(sums, tolerance).empty()) {
    result.cosine.reset();  // near zero, where it says nothing
  }
  if (result.verdict == Verdict::fail && tolerance.min_cosine) {
    result.reason = too_coarse(sums, tolerance);
    if (*result.cosine < *tolerance.min_cosine) result.cause = kTooCoarse;
  } else if (result.verdict == Verdict::fail) {
    result.reason = difference(values.actual[sums.worst], values.reference[sums.worst]) + " at " +
                    shape_text(result.worst) + describe_noise(sums, result.verdict, tolerance);
  } else {
    result.reason = describe_noise(sums, result.verdict, tolerance);
  }
  return result;
}

/// Returns the distance from 1 to the next number of a dtype, or of its parts if it is complex.
double epsilon_of(at::ScalarType dtype) {
  switch (at::toRealValueType(dtype)) {
    case at::kDouble:
      return 0x1p-52;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

/// Returns the root mean square of the finite values; NaN if there are none.
double root_mean_square(const double* values, std::int64_t size) {
  double square = 0, count = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(values[i])) continue;
    square += values[i] * values[i];
    count += 1;
  }
  return std::sqrt(square / count);
}

/// Returns float64 values on the CPU. Complex numbers become pairs in an additional last dimension.
at::Tensor as_doubles(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return (host.is_complex() ? at::view_as_real(host.resolve_conj()) : host)
      .to(at::kDouble)
      .contiguous();
}

OutputParity compare_outputs(const std::string& name, const at::Tensor& actual,
                             const at::Tensor& eager, const at::Tensor& reference,
                             const Tolerance& tolerance) {
  if (reference.sizes() != eager.sizes()) {
    throw Error(ErrorKind::golden, name + ": the reference's shape is not eager's");
  }
  if (reference.is_complex() != eager.is_complex()) {  // complex numbers become pairs below
    throw Error(ErrorKind::golden, name + ": the reference's dtype does not fit eager's");
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
                      r.const_data_ptr<double>(), y.numel(), epsilon_of(eager.scalar_type())};
  if (fail_specials(result, values, y.sizes())) return result;
  return compare_floats(std::move(result), values, y.sizes(), tolerance);
}

/// Returns what eager would return with stored weights: their float64 outputs with eager's own
/// rounding error.
at::Tensor moved(const at::Tensor& eager, const at::Tensor& reference, const at::Tensor& stored) {
  if (!eager.is_floating_point() && !eager.is_complex()) return eager;
  const at::Tensor error = eager.cpu().to(reference.scalar_type()) - reference;
  const at::Tensor finite = at::isfinite(eager.cpu()).logical_and(at::isfinite(reference));
  return (stored + at::where(finite, error, at::zeros_like(error))).to(eager.scalar_type());
}

}  // namespace

const char* to_string(Verdict verdict) {
  constexpr const char* kNames[] = {"exact", "rounding", "drift", "quantized", "FAIL"};
  return kNames[static_cast<int>(verdict)];
}

std::vector<double> typical_sizes(const std::vector<std::vector<at::Tensor>>& references) {
  std::size_t outputs = 0;
  for (const auto& one : references) outputs = std::max(outputs, one.size());
  std::vector<double> found;
  for (std::size_t output = 0; output < outputs; ++output) {
    std::vector<double> sizes;
    for (const auto& one : references) {
      if (output >= one.size()) continue;
      const at::Tensor& values = one[output];
      if (!values.is_floating_point() && !values.is_complex()) continue;
      if (values.numel() * (values.is_complex() ? 2 : 1) > kFew) continue;
      const at::Tensor doubles = as_doubles(values);
      const double size = root_mean_square(doubles.const_data_ptr<double>(), doubles.numel());
      if (std::isfinite(size)) sizes.push_back(size);
    }
    std::ranges::sort(sizes);
    found.push_back(sizes.empty() ? 0 : sizes[sizes.size() / 2]);
  }
  return found;
}

OutputParity compare(const std::string& name, const at::Tensor& actual, const at::Tensor& eager,
                     const at::Tensor& reference, const Tolerance& tolerance) {
  return guarded(ErrorKind::runtime, name + " cannot be compared",
                 [&] { return compare_outputs(name, actual, eager, reference, tolerance); });
}

OutputParity compare_stored(const std::string& name, const at::Tensor& actual,
                            const at::Tensor& eager, const at::Tensor& reference,
                            const at::Tensor& stored, const Tolerance& tolerance) {
  OutputParity found = compare(name, actual, eager, reference, tolerance);
  if (found.verdict == Verdict::fail) return found;
  Tolerance plain = tolerance;
  plain.min_cosine.reset();
  const OutputParity same = guarded(ErrorKind::runtime, name + " cannot be compared", [&] {
    return compare_outputs(name, actual, moved(eager, reference, stored), stored, plain);
  });
  if (same.verdict != Verdict::fail) return found;
  found.worst = same.worst;
  return failure(std::move(found), "not what the stored weights give: " + same.reason);
}

}  // namespace exporter
