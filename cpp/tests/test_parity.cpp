#include <ATen/ATen.h>
#include <exporter/parity.h>

#include <cmath>
#include <limits>

#include "testing.h"

using exporter::compare;
using exporter::OutputParity;
using exporter::Tolerance;
using exporter::Verdict;

namespace {

const Tolerance kTolerance{1e-4, 1e-5, 2.0};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

OutputParity judge(const at::Tensor& actual, const at::Tensor& eager) {
  const at::Tensor reference = eager.is_floating_point() ? eager.to(at::kDouble) : eager;
  return compare("y", actual, eager, reference, kTolerance);
}

at::Tensor ones() { return at::ones({2, 3}); }

at::Tensor ones_but(float value) {
  at::Tensor tensor = ones();
  tensor[1][2] = value;
  return tensor;
}

void check_near(double actual, double expected) {
  EXPECT(std::abs(actual - expected) <= 1e-9 * std::abs(expected));
}

void shape_and_dtype() {
  EXPECT_EQUAL(judge(at::ones({3, 2}), ones()).reason, "shape [3, 2], expected [2, 3]");
  EXPECT_EQUAL(judge(ones().to(at::kHalf), ones()).reason, "dtype float16, expected float32");
  EXPECT(judge(at::ones({1, 3}), ones()).verdict == Verdict::fail);
  EXPECT_ERROR(golden, "reference", compare("y", ones(), ones(), at::ones({1}), kTolerance));
}

void integers() {
  const at::Tensor eager = at::arange(6).reshape({2, 3});
  EXPECT(judge(eager.clone(), eager).verdict == Verdict::exact);
  const auto result = judge(eager.clone().index_fill_(1, at::tensor({1}, at::kLong), 9), eager);
  EXPECT(result.verdict == Verdict::fail);
  EXPECT_EQUAL(result.reason, "2 of 6 values differ");
  EXPECT(result.worst == std::vector<std::int64_t>({0, 1}));
  EXPECT(judge(eager.gt(2), eager.gt(3)).verdict == Verdict::fail);
}

void specials() {
  const auto result = judge(ones_but(kNan), ones());
  EXPECT(result.verdict == Verdict::fail);
  EXPECT_EQUAL(result.reason, "NaN at [1, 2]");
  EXPECT(result.worst == std::vector<std::int64_t>({1, 2}));
  const auto all = judge(at::full({2}, kNan), at::full({2}, kNan));
  EXPECT(all.verdict == Verdict::fail);
  EXPECT_EQUAL(all.reason, "NaN at [0]: eager itself gives it");
  EXPECT_EQUAL(judge(ones(), ones_but(kNan)).reason, "NaN at [1, 2]: eager itself gives it");
  EXPECT(judge(ones_but(kInf), ones_but(kNan)).verdict == Verdict::fail);
  const at::Tensor reference = ones_but(kNan).to(at::kDouble);
  EXPECT_EQUAL(compare("y", ones(), ones(), reference, kTolerance).reason,
               "NaN at [1, 2]: eager itself gives it");
}

/// Infinities are compared with the reference; where eager's differ, it is left out of its error.
void infinities() {
  EXPECT(judge(ones_but(kInf), ones_but(kInf)).verdict == Verdict::exact);
  EXPECT(judge(at::full({2}, kInf), at::full({2}, kInf)).verdict == Verdict::exact);
  const auto sign = judge(ones_but(kInf), ones_but(-kInf));
  EXPECT(sign.verdict == Verdict::fail);
  EXPECT_EQUAL(sign.reason, "Inf at [1, 2]: inf where the reference is -inf");
  EXPECT(sign.worst == std::vector<std::int64_t>({1, 2}));
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  EXPECT_EQUAL(compare("y", ones_but(kInf), ones_but(kInf), reference, kTolerance).reason,
               "Inf at [1, 2]: inf where the reference is 1");
  const auto better = compare("y", ones(), ones_but(kInf), reference, kTolerance);
  EXPECT(better.verdict == Verdict::rounding);
  EXPECT_EQUAL(*better.eager_rmse, 0.0);
}

/// Without an absolute tolerance, zeros that agree are within it.
void no_absolute_tolerance() {
  const Tolerance relative{1e-4, 0, 2.0};
  at::Tensor eager = ones();
  eager[0][0] = 0;
  at::Tensor near = eager.clone();
  near[1][2] = 1.00001f;
  const auto result = compare("y", near, eager, eager.to(at::kDouble), relative);
  EXPECT(result.verdict == Verdict::rounding);
  EXPECT(result.worst == std::vector<std::int64_t>({1, 2}));
  EXPECT(std::isfinite(*result.max_rel));
  near[0][0] = 1e-3f;
  const auto off = compare("y", near, eager, eager.to(at::kDouble), relative);
  EXPECT(off.verdict == Verdict::fail);
  EXPECT(off.worst == std::vector<std::int64_t>({0, 0}));
}

void exact() {
  const auto result = judge(ones(), ones());
  EXPECT(result.verdict == Verdict::exact);
  EXPECT_EQUAL(*result.max_abs, 0.0);
  EXPECT_EQUAL(*result.rmse_ratio, 1.0);
  check_near(*result.cosine, 1.0);
}

void rounding() {
  const auto result = judge(ones_but(1.0001f), ones());
  EXPECT(result.verdict == Verdict::rounding);
  EXPECT(result.reason.empty());
  EXPECT(!result.rmse_ratio);  // eager's own error is 0
  EXPECT(result.worst == std::vector<std::int64_t>({1, 2}));
  check_near(*result.rmse, *result.max_abs / std::sqrt(6.0));
}

/// Outside the tolerance in one place, yet no further from the reference than twice eager's error.
void drift() {
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  const at::Tensor eager = ones_but(1.01f);
  const auto result = compare("y", ones_but(0.985f), eager, reference, kTolerance);
  EXPECT(result.verdict == Verdict::drift);
  check_near(*result.rmse_ratio, (1 - double(0.985f)) / (double(1.01f) - 1));
  EXPECT(compare("y", ones_but(0.97f), eager, reference, kTolerance).verdict == Verdict::fail);
}

void fails() {
  const auto result = judge(ones_but(1.5f), ones());
  EXPECT(result.verdict == Verdict::fail);
  EXPECT_EQUAL(result.reason, "1.5 where the reference is 1 at [1, 2]");
  EXPECT_EQUAL(*result.max_abs, 0.5);
  EXPECT_EQUAL(*result.max_rel, 0.5);
}

void edges() {
  EXPECT_EQUAL(*judge(at::zeros({3}), at::zeros({3})).cosine, 1.0);
  EXPECT_EQUAL(*judge(at::zeros({3}), at::ones({3})).cosine, 0.0);
  EXPECT(judge(at::zeros({0, 4}), at::zeros({0, 4})).verdict == Verdict::exact);
  EXPECT(judge(at::ones({}), at::ones({})).worst.empty());
  EXPECT(judge(ones().to(at::kBFloat16), ones().to(at::kBFloat16)).verdict == Verdict::exact);
  const at::Tensor complex = at::complex(ones(), ones());
  EXPECT(compare("y", complex * 2, complex, complex, kTolerance).verdict == Verdict::fail);
  EXPECT_ERROR(golden, "dtype", compare("y", complex, complex, ones(), kTolerance));
  const at::Tensor sparse = ones().to_sparse();  // something that torch refuses to compute with
  EXPECT_ERROR(runtime, "y cannot be compared: ", compare("y", sparse, sparse, sparse, kTolerance));
}

void quantized() {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  at::manual_seed(0);
  const at::Tensor eager = at::randn({4, 100});
  const auto judge_as = [&](const std::string& name, const at::Tensor& actual) {
    return compare(name, actual, eager, eager.to(at::kDouble), crude);
  };
  EXPECT(judge_as("y", eager + 0.05 * at::randn({4, 100})).verdict == Verdict::quantized);
  const auto far = judge_as("y", eager + 0.2 * at::randn({4, 100}));
  EXPECT(far.verdict == Verdict::fail);
  EXPECT(far.reason.starts_with("cosine 0.9") && far.reason.ends_with("the least is 0.995"));
  EXPECT(judge_as("y", eager + 1e-6).verdict == Verdict::rounding);
}

void scores() {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  at::Tensor eager = at::linspace(-2, 2, 400).repeat({2, 1});
  const auto judge_swapped = [&](const std::string& name) {
    at::Tensor actual = eager.clone();
    actual[1][1] = 5.001;
    return compare(name, actual, eager, eager.to(at::kDouble), crude);
  };
  eager.select(1, 0).fill_(5);
  eager.select(1, 1).fill_(3);
  EXPECT(judge_swapped("y").verdict == Verdict::quantized);
  for (const char* name : {"logits", "head.logits", "output"}) {
    EXPECT_EQUAL(judge_swapped(name).reason, std::string("1 rows have lost their clear first"));
  }
  eager.select(1, 1).fill_(4.9);  // not clear any more
  EXPECT(judge_swapped("logits").verdict == Verdict::quantized);
}

}  // namespace

int main() {
  return testing::run({{"shape and dtype", shape_and_dtype},
                       {"integers", integers},
                       {"NaN", specials},
                       {"infinities", infinities},
                       {"no absolute tolerance", no_absolute_tolerance},
                       {"exact", exact},
                       {"rounding", rounding},
                       {"drift", drift},
                       {"FAIL", fails},
                       {"quantized", quantized},
                       {"quantized scores", scores},
                       {"empty, scalar, zero, half and complex outputs", edges}});
}
