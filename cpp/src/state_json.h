#pragma once

#include <exporter/contract.h>

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace exporter {

/// Reads a contract's `state`. `specs` are the specs of its tensors. Throws Error(artifact), and
/// the exceptions of nlohmann/json.
State read_state(const nlohmann::json& node, std::vector<TensorSpec> specs);

/// Throws Error(artifact) if the caller keeps the state and the last inputs and outputs are not the
/// state's.
void require_places(const Contract& contract);

}  // namespace exporter
