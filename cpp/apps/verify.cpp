#include <cstdio>
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

void print_text(const std::vector<CaseResult>& cases, const Options& options) {
  int failed = 0;
  for (const CaseResult& one : cases) {
    for (const OutputParity& output : one.outputs) print_output(one, output);
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
  const Golden golden = Golden::read(options.golden);
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
