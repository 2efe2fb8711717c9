#pragma once

#include <exporter/artifact.h>
#include <exporter/golden.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "options.h"

namespace exporter::app {

/// How one golden case went.
struct CaseResult {
  std::string name;
  std::int64_t seed;
  std::optional<std::int64_t> step;
  std::string error;    ///< why there are no outputs; empty when there are
  std::string refused;  ///< or what the contract says against the inputs
  std::vector<OutputParity> outputs;
  /// Whether a size of the case is one that the contract does not promise, so that it is right to
  /// refuse the case, and wrong to run it.
  bool outside = false;

  /// The worst over the outputs; fail when the case raised, or was refused without reason.
  Verdict verdict() const;
};

/// The golden for the precision of the artifact.
Golden read_golden(const Options& options);

/// Runs every case and compares. A case that raises is a result with an error, and so are the later
/// steps of its sequence. Step 0, and a case that stands alone, begin from the initial state.
std::vector<CaseResult> check(const Artifact& artifact, const Golden& golden,
                              const Tolerance& tolerance);

/// The worst over the cases; fail where all of them were refused.
Verdict verdict_of(const std::vector<CaseResult>& cases);

/// Cases as in the answer to `check` (docs/formats.md).
nlohmann::ordered_json to_json(const std::vector<CaseResult>& cases);

}  // namespace exporter::app
