#pragma once

#include "runner.h"

namespace exporter {

/// Wraps the runner of an artifact that keeps its state. Serves one call at a time and refuses
/// sizes that the state was not made for. `mode` is returned by `execution_mode`.
std::unique_ptr<Runner> serialize_calls(std::unique_ptr<Runner> inner, Contract contract,
                                        std::string mode);

}  // namespace exporter
