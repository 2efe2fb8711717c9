#pragma once

#include <exporter/contract.h>

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace exporter {

/// Reads a contract's `state`, whose specs stand there beside their `initial`. Throws
/// Error(artifact), and what nlohmann's reader throws.
State read_state(const nlohmann::json& node, std::vector<TensorSpec> specs);

/// Throws Error(artifact) unless the last inputs and outputs are the state's, where the caller has
/// it.
void require_places(const Contract& contract);

}  // namespace exporter
