#pragma once

#include <exporter/artifact.h>
#include <exporter/golden.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "options.h"

namespace exporter::app {

/// How one golden case went.
struct CaseResult {
  std::string name;
  std::int64_t seed;
  std::string error;  ///< why there are no outputs; empty when there are
  std::vector<OutputParity> outputs;
  std::string refused;  ///< what the contract says against its sizes; it was not run then

  /// The worst over the outputs; fail when the case raised, exact when it was refused.
  Verdict verdict() const;
};

/// The golden for the precision of the artifact.
Golden read_golden(const Options& options);

/// Runs every case that the contract allows, and compares. A case that raises is a result with an
/// error.
std::vector<CaseResult> check(const Artifact& artifact, const Golden& golden,
                              const Tolerance& tolerance);

/// The worst over the cases; fail when every one was refused.
Verdict verdict_of(const std::vector<CaseResult>& cases);

/// Cases as in the answer to `check` (docs/formats.md).
nlohmann::ordered_json to_json(const std::vector<CaseResult>& cases);

}  // namespace exporter::app
