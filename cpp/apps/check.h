#pragma once

#include <exporter/artifact.h>
#include <exporter/golden.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "options.h"

namespace exporter::app {

/// The result of one golden case.
struct CaseResult {
  std::string name;
  std::int64_t seed;
  std::optional<std::int64_t> step;
  std::string error;    ///< why the case has no outputs; empty if it has
  std::string refused;  ///< why the contract refused the inputs; else empty
  std::vector<OutputParity> outputs;
  /// Whether the contract does not allow a size of the case. Such a case must be refused; running
  /// it is a failure.
  bool outside = false;

  /// The worst verdict over the outputs; fail if the case raised, or was refused without reason.
  Verdict verdict() const;
};

/// Throws Error(golden), with the remedy, if no golden is given and there is none in the artifact's
/// bundle.
void require_golden(const Options& options);

/// Reads the golden for the precision of the artifact, after `require_golden`.
Golden read_golden(const Options& options);

/// Runs every case and compares. A case that raises is a result with an error, and so are the later
/// steps of its sequence. Step 0, and an independent case, start from the initial state.
std::vector<CaseResult> check(const Artifact& artifact, const Golden& golden);

/// Returns the worst verdict over the cases; fail if all of them were refused.
Verdict verdict_of(const std::vector<CaseResult>& cases);

/// Formats the cases as in the answer to `check` (docs/formats.md).
nlohmann::ordered_json to_json(const std::vector<CaseResult>& cases);

}  // namespace exporter::app
