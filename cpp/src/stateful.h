#pragma once

#include "runner.h"

namespace exporter {

/// Wraps the runner of an artifact that keeps its state: one call at a time, and none at sizes that
/// the state was not made for. `mode` says how it runs.
std::unique_ptr<Runner> serialize_calls(std::unique_ptr<Runner> inner, Contract contract,
                                        std::string mode);

}  // namespace exporter
