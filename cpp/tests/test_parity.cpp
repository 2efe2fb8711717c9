#include <ATen/ATen.h>
#include <exporter/parity.h>

#include <cmath>
#include <limits>

#include "support.h"

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
  CHECK(std::abs(actual - expected) <= 1e-9 * std::abs(expected));
}

TEST_CASE("shape and dtype") {
  CHECK(judge(at::ones({3, 2}), ones()).reason == "shape [3, 2], expected [2, 3]");
  CHECK(judge(ones().to(at::kHalf), ones()).reason == "dtype float16, expected float32");
  CHECK(judge(at::ones({1, 3}), ones()).verdict == Verdict::fail);
  CHECK_ERROR(golden, "reference", compare("y", ones(), ones(), at::ones({1}), kTolerance));
}

TEST_CASE("integers") {
  const at::Tensor eager = at::arange(6).reshape({2, 3});
  CHECK(judge(eager.clone(), eager).verdict == Verdict::exact);
  const auto result = judge(eager.clone().index_fill_(1, at::tensor({1}, at::kLong), 9), eager);
  CHECK(result.verdict == Verdict::fail);
  CHECK(result.reason == "2 of 6 values differ");
  CHECK(result.worst == std::vector<std::int64_t>({0, 1}));
  CHECK(judge(eager.gt(2), eager.gt(3)).verdict == Verdict::fail);
}

TEST_CASE("NaN") {
  const auto result = judge(ones_but(kNan), ones());
  CHECK(result.verdict == Verdict::fail);
  CHECK(result.reason == "NaN at [1, 2]");
  CHECK(result.worst == std::vector<std::int64_t>({1, 2}));
  const auto all = judge(at::full({2}, kNan), at::full({2}, kNan));
  CHECK(all.verdict == Verdict::fail);
  CHECK(all.reason == "NaN at [0]: eager itself returns NaN");
  CHECK(judge(ones(), ones_but(kNan)).reason == "NaN at [1, 2]: eager itself returns NaN");
  CHECK(judge(ones_but(kInf), ones_but(kNan)).verdict == Verdict::fail);
  const at::Tensor reference = ones_but(kNan).to(at::kDouble);
  CHECK(compare("y", ones(), ones(), reference, kTolerance).reason ==
        "NaN at [1, 2]: eager itself returns NaN");
}

/// Infinities are compared with the reference. Elements where eager's differ are excluded from
/// eager's error.
TEST_CASE("infinities") {
  CHECK(judge(ones_but(kInf), ones_but(kInf)).verdict == Verdict::exact);
  CHECK(judge(at::full({2}, kInf), at::full({2}, kInf)).verdict == Verdict::exact);
  const auto sign = judge(ones_but(kInf), ones_but(-kInf));
  CHECK(sign.verdict == Verdict::fail);
  CHECK(sign.reason == "Inf at [1, 2]: inf where the reference is -inf");
  CHECK(sign.worst == std::vector<std::int64_t>({1, 2}));
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  CHECK(compare("y", ones_but(kInf), ones_but(kInf), reference, kTolerance).reason ==
        "Inf at [1, 2]: inf where the reference is 1");
  const auto better = compare("y", ones(), ones_but(kInf), reference, kTolerance);
  CHECK(better.verdict == Verdict::rounding);
  CHECK(*better.eager_rmse == 0.0);
}

/// Equal zeros are within tolerance even if the absolute tolerance is 0.
TEST_CASE("no absolute tolerance") {
  const Tolerance relative{1e-4, 0, 2.0};
  at::Tensor eager = ones();
  eager[0][0] = 0;
  at::Tensor near = eager.clone();
  near[1][2] = 1.00001f;
  const auto result = compare("y", near, eager, eager.to(at::kDouble), relative);
  CHECK(result.verdict == Verdict::rounding);
  CHECK(result.worst == std::vector<std::int64_t>({1, 2}));
  CHECK(std::isfinite(*result.max_rel));
  near[0][0] = 1e-3f;
  const auto off = compare("y", near, eager, eager.to(at::kDouble), relative);
  CHECK(off.verdict == Verdict::fail);
  CHECK(off.worst == std::vector<std::int64_t>({0, 0}));
}

TEST_CASE("exact") {
  const auto result = judge(ones(), ones());
  CHECK(result.verdict == Verdict::exact);
  CHECK(*result.max_abs == 0.0);
  CHECK(*result.rmse_ratio == 1.0);
  check_near(*result.cosine, 1.0);
}

TEST_CASE("rounding") {
  const auto result = judge(ones_but(1.0001f), ones());
  CHECK(result.verdict == Verdict::rounding);
  CHECK(result.reason.empty());
  CHECK(!result.rmse_ratio);  // eager's own error is 0
  CHECK(result.worst == std::vector<std::int64_t>({1, 2}));
  check_near(*result.rmse, *result.max_abs / std::sqrt(6.0));
}

/// One element is outside the tolerance, but the error is at most twice eager's.
TEST_CASE("drift") {
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  const at::Tensor eager = ones_but(1.01f);
  const auto result = compare("y", ones_but(0.985f), eager, reference, kTolerance);
  CHECK(result.verdict == Verdict::drift);
  check_near(*result.rmse_ratio, (1 - double(0.985f)) / (double(1.01f) - 1));
  CHECK(compare("y", ones_but(0.97f), eager, reference, kTolerance).verdict == Verdict::fail);
}

/// Eager's error counts only up to 0.3 of the reference: beyond, any output would pass.
TEST_CASE("an error of eager that is no rounding") {
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  const at::Tensor eager = at::full({2, 3}, 3.0f);
  const auto result = compare("y", at::zeros({2, 3}), eager, reference, kTolerance);
  CHECK(result.verdict == Verdict::fail);
  CHECK(result.reason ==
        "0 where the reference is 1 at [0, 0]; eager's error is 2 where the output is 1 (RMS)");
  CHECK(compare("y", at::full({2, 3}, 1.2f), eager, reference, kTolerance).verdict ==
        Verdict::drift);
}

/// Such an error may only be repeated, but for rounding.
TEST_CASE("the same error as eager's") {
  const at::Tensor reference = at::ones({3}, at::kDouble);
  const at::Tensor eager = at::tensor({3.0f, 3.0f, -1.0f});
  const std::string repeated =
      "eager's error is 2 where the output is 1 (RMS), and the artifact returns the same as eager";
  const auto near = compare("y", eager + 0.00019f, eager, reference, kTolerance);
  CHECK(near.verdict == Verdict::drift);
  CHECK(near.reason == repeated);
  CHECK(compare("y", eager + 0.00021f, eager, reference, kTolerance).verdict == Verdict::fail);
  CHECK(compare("y", eager, eager, reference, kTolerance).reason == repeated);
  const Tolerance half{1.6e-2, 1e-2, 3.0};
  CHECK(compare("y", eager + 0.047f, eager, reference, half).verdict == Verdict::drift);
  CHECK(compare("y", eager + 0.049f, eager, reference, half).verdict == Verdict::fail);
  const Tolerance wide{0.1, 1e-2, 3.0};
  CHECK(compare("y", eager + 0.051f, eager, reference, wide).verdict == Verdict::fail);
  at::Tensor spike = at::ones({1000});
  spike[0] = 60000;
  at::Tensor wrong = spike.clone();
  wrong.slice(0, 1).add_(0.1);
  CHECK(compare("y", wrong, spike, at::ones({1000}, at::kDouble), half).verdict == Verdict::fail);
  CHECK(compare("y", spike * 1.0000001, spike, at::ones({1000}, at::kDouble), half).verdict ==
        Verdict::drift);
  const at::Tensor overflown = at::tensor({kInf, 3.0f, 3.0f});
  const at::Tensor finite = at::tensor({9.0f, 3.0f, 3.0f});
  CHECK(compare("y", finite, overflown, reference, kTolerance).verdict == Verdict::fail);
}

/// Masked scores do not hide the errors of the others, by their size or by the cosine.
TEST_CASE("extreme elements") {
  at::Tensor reference = at::ones({2, 6}, at::kDouble);
  reference.select(1, 0).fill_(-1e9);
  const at::Tensor eager = reference.to(at::kFloat);
  at::Tensor actual = eager.clone();
  actual[1][2] = 1.5f;
  const auto result = compare("y", actual, eager, reference, kTolerance);
  CHECK(result.verdict == Verdict::fail);
  CHECK(result.reason == "1.5 where the reference is 1 at [1, 2]");
  const Tolerance coarse{1e-4, 1e-5, 2.0, 0.995};
  CHECK(compare("y", actual, eager, reference, coarse).verdict == Verdict::fail);
  actual[1][2] = 1.05f;
  CHECK(compare("y", actual, eager, reference, coarse).verdict == Verdict::quantized);
  actual[0][0] = 0;
  CHECK(compare("y", actual, eager, reference, coarse).verdict == Verdict::fail);
}

/// Each gap begins a group: one kind of extreme elements does not hide the errors of another.
TEST_CASE("several groups of extreme elements") {
  const at::Tensor eager = at::tensor({1.0f, 2.0f, -1e4f, -3.4e38f});
  at::Tensor actual = eager.clone();
  actual[2] = 0;
  CHECK(compare("y", actual, eager, eager.to(at::kDouble), kTolerance).verdict == Verdict::fail);
}

/// Quantization must keep the extreme elements extreme.
TEST_CASE("extreme elements that were cut off") {
  const at::Tensor eager = at::tensor({1.0f, 2.0f, -1e9f, -1e9f});
  const at::Tensor reference = eager.to(at::kDouble);
  const Tolerance coarse{1e-4, 1e-5, 2.0, 0.995};
  const at::Tensor cut = eager.clamp_min(-1);
  CHECK(compare("y", cut, eager, reference, coarse).verdict == Verdict::fail);
  CHECK(compare("y", eager * 0.999, eager, reference, coarse).verdict == Verdict::quantized);
}

/// Where large terms cancel out, float32 leaves what it rounds of them.
TEST_CASE("values that cancel out") {
  const at::Tensor reference = at::full({8, 8}, 8192.0, at::kDouble);
  reference.diagonal().fill_(1e-12);
  const auto off = [&](double noise) {
    at::Tensor moved = reference.clone();
    moved.diagonal().slice(0, 0, 4).add_(noise);
    moved.diagonal().slice(0, 4, 8).sub_(noise);
    return moved.to(at::kFloat);
  };
  CHECK(compare("y", off(-1e-3), off(1e-3), reference, kTolerance).verdict == Verdict::drift);
  CHECK(compare("y", off(-1e-2), off(1e-3), reference, kTolerance).verdict == Verdict::fail);
  const Tolerance coarse{1e-4, 1e-5, 2.0, 0.995};
  CHECK(compare("y", off(-0.1), off(1e-3), reference, coarse).verdict == Verdict::quantized);
}

/// The limit of float64 is no excuse for another value there.
TEST_CASE("squares that overflow") {
  const at::Tensor eager = at::ones({2, 3}, at::kDouble);
  eager[0][0] = 1.7e308;
  at::Tensor actual = eager.clone();
  actual[0][0] = 1.0e308;
  CHECK(compare("y", actual, eager, eager * (1 + 1e-12), kTolerance).verdict == Verdict::fail);
}

/// An output with stored weights passes by the cosine, but only if these weights give it.
TEST_CASE("stored weights") {
  const Tolerance tolerance{1e-4, 1e-5, 2.0, 0.99};
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  const at::Tensor stored = ones_but(1.01f).to(at::kDouble);
  const auto of = [&](const at::Tensor& actual) {
    return exporter::compare_stored("y", actual, ones(), reference, stored, tolerance);
  };
  CHECK(of(ones_but(1.01f)).verdict == Verdict::quantized);
  check_near(*of(ones_but(1.01f)).max_abs, double(1.01f) - 1);
  const auto other = of(ones_but(1.011f));
  CHECK(other.verdict == Verdict::fail);
  CHECK(other.reason ==
        "not what the stored weights give: 1.011 where the reference is 1.01 at [1, 2]");
  CHECK(of(ones()).verdict == Verdict::fail);
  CHECK(of(ones_but(kNan)).verdict == Verdict::fail);
  const at::Tensor far = ones_but(2.0f).to(at::kDouble);
  const auto coarse =
      exporter::compare_stored("y", far.to(at::kFloat), ones(), reference, far, tolerance);
  CHECK(coarse.verdict == Verdict::fail);
  CHECK(coarse.cause == "too-coarse");
}

/// The error that eager itself has with the original weights is allowed with the stored ones too.
TEST_CASE("stored weights, and eager's own error") {
  const Tolerance tolerance{1e-4, 1e-5, 2.0, 0.99};
  const at::Tensor reference = at::ones({2, 3}, at::kDouble);
  const auto of = [&](float value) {
    at::Tensor actual = at::full({2, 3}, 1.02f);
    actual[1][2] = value;
    return exporter::compare_stored("y", actual, ones_but(1.01f), reference, reference * 1.02,
                                    tolerance);
  };
  CHECK(of(1.035f).verdict == Verdict::quantized);
  CHECK(of(1.045f).verdict == Verdict::fail);
}

TEST_CASE("FAIL") {
  const auto result = judge(ones_but(1.5f), ones());
  CHECK(result.verdict == Verdict::fail);
  CHECK(result.reason == "1.5 where the reference is 1 at [1, 2]");
  CHECK(*result.max_abs == 0.5);
  CHECK(*result.max_rel == 0.5);
}

TEST_CASE("empty, scalar, zero, half and complex outputs") {
  CHECK(*judge(at::zeros({3}), at::zeros({3})).cosine == 1.0);
  CHECK(*judge(at::zeros({3}), at::ones({3})).cosine == 0.0);
  CHECK(judge(at::zeros({0, 4}), at::zeros({0, 4})).verdict == Verdict::exact);
  CHECK(judge(at::ones({}), at::ones({})).worst.empty());
  CHECK(judge(ones().to(at::kBFloat16), ones().to(at::kBFloat16)).verdict == Verdict::exact);
  const at::Tensor complex = at::complex(ones(), ones());
  CHECK(compare("y", complex * 2, complex, complex, kTolerance).verdict == Verdict::fail);
  CHECK_ERROR(golden, "dtype", compare("y", complex, complex, ones(), kTolerance));
  const at::Tensor sparse = ones().to_sparse();  // torch cannot compute with it
  CHECK_ERROR(runtime, "y cannot be compared: ", compare("y", sparse, sparse, sparse, kTolerance));
}

TEST_CASE("quantized") {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  at::manual_seed(0);
  const at::Tensor eager = at::randn({4, 100});
  const auto judge_as = [&](const std::string& name, const at::Tensor& actual) {
    return compare(name, actual, eager, eager.to(at::kDouble), crude);
  };
  CHECK(judge_as("y", eager + 0.05 * at::randn({4, 100})).verdict == Verdict::quantized);
  const auto far = judge_as("y", eager + 0.2 * at::randn({4, 100}));
  CHECK(far.verdict == Verdict::fail);
  CHECK((far.reason.starts_with("cosine 0.9") && far.reason.ends_with("the minimum is 0.995")));
  CHECK(judge_as("y", eager + 1e-6).verdict == Verdict::rounding);
}

TEST_CASE("typical sizes") {
  // Infinite references and outputs with more than eight elements do not count.
  std::vector<std::vector<at::Tensor>> references;
  for (const double value : {2.0, -2.0, 2.0, 0.1, 1e6, 3.0, 1.0, static_cast<double>(kInf)}) {
    references.push_back({at::full({1, 1}, value, at::kDouble), at::ones({3, 3}, at::kDouble),
                          at::ones({2}, at::kLong)});
  }
  CHECK(exporter::typical_sizes(references) == std::vector<double>{2, 0, 0});
  references.back().pop_back();  // a forged golden
  CHECK(exporter::typical_sizes(references) == std::vector<double>{2, 0, 0});
  CHECK(exporter::typical_sizes({}).empty());
}

TEST_CASE("few elements near zero") {
  const auto judged = [](const at::Tensor& actual, const at::Tensor& eager, double typical) {
    const Tolerance coarse{1e-4, 1e-5, 2.0, 0.995, typical};
    return compare("logits", actual, eager, eager.to(at::kDouble), coarse);
  };
  const at::Tensor one = at::full({1, 1}, 0.1f);
  CHECK(judged(-one, one, 0).reason == "cosine -1.0000, the minimum is 0.995");
  CHECK(judged(-one, one, 2.1).verdict == Verdict::quantized);
  CHECK(!judged(-one, one, 2.1).cosine);
  CHECK(judged(one + 0.19, one, 2).verdict == Verdict::quantized);
  CHECK(judged(one + 0.21, one, 2).reason ==
        "error 0.21 where the output is 0.1 (RMS), the maximum is 0.03");
  CHECK(judged(one - 0.3, one, 2).cause == "too-coarse");
  CHECK(judged(one * 1.4, one, 0.05).verdict == Verdict::fail);  // larger than typical
  const at::Tensor two = at::full({2}, 0.1f);
  const at::Tensor opposed = at::tensor({0.1f, -0.1f});
  CHECK(judged(opposed, two, 2).verdict == Verdict::quantized);
  CHECK(judged(opposed, two, 1).verdict == Verdict::fail);
  CHECK(judged(-at::full({9}, 0.1f), at::full({9}, 0.1f), 2).verdict == Verdict::fail);  // not few
  const at::Tensor scores = at::tensor({10.0f, 10.5f}).reshape({1, 2});
  CHECK(judged(scores.flip(1), scores, 11).reason == "rows whose clear winner changed: 1");
}

/// Extreme elements and the others have limits of their own.
TEST_CASE("quantized extreme elements") {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  const at::Tensor eager = at::tensor({1.0f, 2.0f, -1e9f});
  const auto verdict = [&](const at::Tensor& actual) {
    return compare("y", actual, eager, eager.to(at::kDouble), crude).verdict;
  };
  CHECK(verdict(at::tensor({1.2f, 2.4f, -1e9f})) == Verdict::fail);
  CHECK(verdict(at::tensor({1.1f, 2.2f, -1e9f})) == Verdict::quantized);
  CHECK(verdict(at::tensor({1.0f, 2.0f, -1.1e9f})) == Verdict::quantized);
  CHECK(verdict(at::tensor({1.0f, 2.0f, -1.16e9f})) == Verdict::fail);
}

/// The cosine does not see a factor.
TEST_CASE("quantized by a factor") {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  const auto judge_as = [&](std::int64_t count, double factor) {
    const at::Tensor reference = at::linspace(1, 2, count, at::kDouble);
    const at::Tensor eager = reference.to(at::kFloat);
    return compare("y", (reference * factor).to(at::kFloat), eager, reference, crude);
  };
  CHECK(judge_as(40, 1.14).verdict == Verdict::quantized);
  CHECK(judge_as(40, 1.16).verdict == Verdict::fail);
  CHECK(judge_as(40, 0.84).verdict == Verdict::fail);
  CHECK(judge_as(1, 1.29).verdict == Verdict::quantized);
  CHECK(judge_as(1, 1.31).reason == "error 0.31 where the output is 1 (RMS), the maximum is 0.3");
}

TEST_CASE("quantized scores") {
  const Tolerance crude{1e-4, 1e-5, 2.0, 0.995};
  at::Tensor eager = at::linspace(-2, 2, 400).repeat({2, 1});
  const auto judge_swapped = [&](const std::string& name) {
    at::Tensor actual = eager.clone();
    actual[1][1] = 5.001;
    return compare(name, actual, eager, eager.to(at::kDouble), crude);
  };
  eager.select(1, 0).fill_(5);
  eager.select(1, 1).fill_(3);
  CHECK(judge_swapped("y").verdict == Verdict::quantized);
  for (const char* name : {"logits", "head.logits", "output"}) {
    CHECK(judge_swapped(name).reason == std::string("rows whose clear winner changed: 1"));
  }
  eager.select(1, 1).fill_(4.9);  // no clear winner any more
  CHECK(judge_swapped("logits").verdict == Verdict::quantized);
}

}  // namespace
