#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "check.h"
#include "commands.h"
#include "measure.h"

namespace exporter::app {
namespace {

std::string text(const std::optional<double>& value, const char* format) {
  char buffer[32];
  if (!value) return "-";
  std::snprintf(buffer, sizeof buffer, format, *value);
  return buffer;
}

void print_output(const CaseResult& one, const OutputParity& output) {
  std::printf("%-8s  %s seed %lld  %s  max abs %s  max rel %s  rmse %s x eager  cosine %s%s%s\n",
              to_string(output.verdict), one.name.c_str(), static_cast<long long>(one.seed),
              output.output.c_str(), text(output.max_abs, "%.2g").c_str(),
              text(output.max_rel, "%.2g").c_str(), text(output.rmse_ratio, "%.2f").c_str(),
              text(output.cosine, "%.6f").c_str(), output.reason.empty() ? "" : ": ",
              output.reason.c_str());
}

/// Whether `one` is further from the reference than `other`.
bool is_worse(const OutputParity& one, const OutputParity& other) {
  if (one.verdict != other.verdict) return one.verdict > other.verdict;
  return one.max_abs.value_or(0) > other.max_abs.value_or(0);
}

/// All outputs of all cases; or, unless `verbose`, what is FAIL, and of each output the worst case.
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
  print_outputs(cases, options.verbose);
  for (const CaseResult& one : cases) {
    if (!one.refused.empty()) {
      std::printf("%-8s  %s seed %lld: %s\n", "refused", one.name.c_str(),
                  static_cast<long long>(one.seed), one.refused.c_str());
    }
    if (!one.error.empty()) {
      std::printf("%-8s  %s seed %lld: %s\n", to_string(Verdict::fail), one.name.c_str(),
                  static_cast<long long>(one.seed), one.error.c_str());
    }
    if (one.verdict() == Verdict::fail) ++failed;
  }
  std::printf("%s: %s (%zu cases, %d failed)\n", options.artifact.c_str(),
              to_string(verdict_of(cases)), cases.size(), failed);
}

}  // namespace

int verify(const Options& options) {
  const Golden golden = read_golden(options);
  const Artifact artifact = Artifact::open(options.artifact, options.open);
  const auto cases = check(artifact, golden, tolerance_of(options, golden.tolerance));
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
