#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "check.h"
#include "commands.h"
#include "measure.h"
#include "printable.h"

namespace exporter::app {
namespace {

/// Replaces the golden's tolerances by those of the command line.
void override_tolerances(Golden& golden, const Options& options) {
  const auto override_one = [&](Tolerance& one) {
    one.rtol = options.rtol.value_or(one.rtol);
    one.atol = options.atol.value_or(one.atol);
  };
  override_one(golden.tolerance);
  for (auto& [dtype, own] : golden.tolerances) override_one(own);
}

std::string text(const std::optional<double>& value, const char* format) {
  char buffer[32];
  if (!value) return "-";
  std::snprintf(buffer, sizeof buffer, format, *value);
  return buffer;
}

/// Returns "batch=1 seed 0", for example, or "batch=1 step 3 seed 0": the name of a case in a
/// sequence contains its step.
std::string describe(const CaseResult& one) {
  return printable(one.name) + " seed " + std::to_string(one.seed);
}

void print_output(const CaseResult& one, const OutputParity& output) {
  std::printf(
      "%-8s  %s  %s  against float64: max abs %s  max rel %s  rmse %s x eager's  cosine %s%s%s\n",
      to_string(output.verdict), describe(one).c_str(), printable(output.output).c_str(),
      text(output.max_abs, "%.2g").c_str(), text(output.max_rel, "%.2g").c_str(),
      text(output.rmse_ratio, "%.2f").c_str(), text(output.cosine, "%.6f").c_str(),
      output.reason.empty() ? "" : ": ", printable(output.reason).c_str());
}

/// Returns whether `one` is further from the reference than `other`.
bool is_worse(const OutputParity& one, const OutputParity& other) {
  if (one.verdict != other.verdict) return one.verdict > other.verdict;
  return one.max_abs.value_or(0) > other.max_abs.value_or(0);
}

/// Prints every output of every case if `verbose`; otherwise each FAIL and the worst case per
/// output.
void print_outputs(const std::vector<CaseResult>& cases, bool verbose) {
  std::map<std::string, std::pair<const CaseResult*, const OutputParity*>> worst;
  for (const CaseResult& one : cases) {
    for (const OutputParity& output : one.outputs) {
      if (verbose || output.verdict == Verdict::fail) {
        print_output(one, output);
        continue;
      }
      auto& [its_case, its_output] = worst[output.output];
      if (its_output == nullptr || is_worse(output, *its_output)) {
        its_case = &one;
        its_output = &output;
      }
    }
  }
  for (const auto& [name, found] : worst) print_output(*found.first, *found.second);
}

void print_text(const std::vector<CaseResult>& cases, const Options& options) {
  int failed = 0;
  int outside = 0;
  print_outputs(cases, options.verbose);
  for (const CaseResult& one : cases) {
    const bool is_fail = one.verdict() == Verdict::fail;
    const std::string& cause = one.error.empty() ? one.refused : one.error;
    if (is_fail && one.outside) {
      std::printf("%-8s  %s: the contract does not allow this, but it was accepted\n",
                  to_string(Verdict::fail), describe(one).c_str());
    } else if (is_fail && !cause.empty()) {
      std::printf("%-8s  %s: %s\n", to_string(Verdict::fail), describe(one).c_str(),
                  printable(cause).c_str());
    }
    failed += is_fail ? 1 : 0;
    outside += !is_fail && one.outside ? 1 : 0;
  }
  const std::string refused =
      outside == 0 ? "" : ", " + std::to_string(outside) + " refused as the contract requires";
  std::printf("%s: %s (%zu cases, %d failed%s)\n", options.artifact.c_str(),
              to_string(verdict_of(cases)), cases.size(), failed, refused.c_str());
}

}  // namespace

int verify(const Options& options) {
  if (options.open.sha256.empty()) require_golden(options);  // sooner than a hash that is missing
  OpenOptions open = options.open;
  open.require_sha256 = true;
  const Artifact artifact = Artifact::open(options.artifact, open);
  Golden golden = read_golden(options);
  override_tolerances(golden, options);
  const auto cases = check(artifact, golden);
  const Verdict verdict = verdict_of(cases);
  if (options.json) {
    const nlohmann::ordered_json json = {{"artifact", options.artifact.string()},
                                         {"device", artifact.device().str()},
                                         {"verdict", to_string(verdict)},
                                         {"cases", to_json(cases)},
                                         {"peak_rss_mb", peak_rss_mb()}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    print_text(cases, options);
  }
  return verdict == Verdict::fail ? 1 : 0;
}

}  // namespace exporter::app
