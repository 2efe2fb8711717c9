#pragma once

#include <exporter/contract.h>

#include "graph.h"
#include "weights.h"

namespace exporter::program {

/// Makes a contract for a program that has none: from its inputs, the ranges of its symbols, its
/// outputs, and the weights that it writes to, which are its state. `tensors` are the weights.
/// As torch.export's own check does, a minimum of 2 allows 0 and 1: torch.export records it for
/// every dynamic size.
Contract contract_of(const SavedProgram& program, const SavedTensors& tensors);

}  // namespace exporter::program
