#pragma once

#include <memory>
#include <string>

#include "binder.h"
#include "graph.h"
#include "routine.h"

namespace exporter::program {

/// Splits "torch.ops.aten.add.Tensor" into "aten::add" and "Tensor". Returns nothing for a target
/// that is not an operator of the dispatcher.
std::optional<c10::OperatorName> operator_name(const std::string& target);

/// Returns why a saved program may not call the operator, or an empty string if it may. Only
/// operators that compute are allowed, not those that read files or send messages.
std::string forbidden(const c10::OperatorName& name);

/// Prepares a call of an operator of the dispatcher. Throws std::runtime_error if it is not
/// registered, not allowed, or takes other operands.
std::unique_ptr<const Instruction> operator_call(const Node& node, const c10::OperatorName& name,
                                                 Scope& scope);

/// Prepares a computation with numbers; nullptr if the node is none.
std::unique_ptr<const Instruction> number_step(const Node& node, Scope& scope);

/// Prepares control flow and regions; nullptr if the node is none. Graphs inside are prepared by
/// `prepare_graph`.
std::unique_ptr<const Instruction> control_flow(const Node& node, Scope& scope);

/// Prepares a graph. `inputs` are the names of what a call passes, in order; they get the first
/// slots. `weights` are constants by name. A node that cannot run is added to the context's
/// problems.
Routine prepare_graph(const Graph& graph, const std::vector<std::string>& inputs,
                      const std::map<std::string, c10::IValue>& weights, Context& context);

}  // namespace exporter::program
