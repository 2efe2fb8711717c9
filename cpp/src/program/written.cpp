// Finds what a graph writes to, from the aliases that operators declare in their schemas.

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "instructions.h"
#include "program.h"

namespace exporter::program {
namespace {

using Names = std::set<std::string>;

/// The inputs of a graph whose memory each value may share.
class Aliases {
 public:
  explicit Aliases(const Graph& graph) {
    for (const Argument& input : graph.inputs) {
      if (const auto* value = std::get_if<Reference>(&input.is)) of_[value->name] = {value->name};
    }
  }

  Names of(const Argument& argument) const {
    Names found;
    if (const auto* value = std::get_if<Reference>(&argument.is)) {
      const auto known = of_.find(value->name);
      if (known != of_.end()) found = known->second;
    }
    if (const auto* items = std::get_if<std::vector<Argument>>(&argument.is)) {
      for (const Argument& item : *items) found.merge(of(item));
    }
    return found;
  }

  void add(const Result& result, const Names& inputs) {
    for (const std::string& name : result.names) of_[name].insert(inputs.begin(), inputs.end());
  }

 private:
  std::map<std::string, Names> of_;
};

bool has_alias(const c10::Argument& argument) { return argument.alias_info() != nullptr; }

void add_operator(const Node& node, const c10::FunctionSchema& schema, Aliases& aliases,
                  Names& written) {
  Names shared;
  for (const NamedArgument& input : node.inputs) {
    const auto parameter = std::ranges::find(schema.arguments(), input.name,
                                             [](const auto& one) { return one.name(); });
    if (parameter == schema.arguments().end() || !has_alias(*parameter)) continue;
    const Names inputs = aliases.of(input.argument);
    shared.insert(inputs.begin(), inputs.end());
    if (parameter->alias_info()->isWrite()) written.insert(inputs.begin(), inputs.end());
  }
  for (std::size_t i = 0; i < std::min(node.outputs.size(), schema.returns().size()); ++i) {
    if (has_alias(schema.returns()[i])) aliases.add(node.outputs[i], shared);
  }
}

/// Control flow: what its graphs write to, and results that may share any operand's memory.
void add_graphs(const Node& node, Aliases& aliases, Names& written) {
  Names all, inner;
  for (const NamedArgument& input : node.inputs) all.merge(aliases.of(input.argument));
  for (const NamedArgument& input : node.inputs) {
    const auto* graph = std::get_if<std::shared_ptr<const Graph>>(&input.argument.is);
    if (graph != nullptr) inner.merge(written_inputs(**graph));
  }
  if (!inner.empty()) written.insert(all.begin(), all.end());
  for (const Result& result : node.outputs) aliases.add(result, all);
}

}  // namespace

Names written_inputs(const Graph& graph) {
  Aliases aliases(graph);
  Names written;
  for (const Node& node : graph.nodes) {
    const auto name = operator_name(node.target);
    if (!name) {
      add_graphs(node, aliases, written);
    } else if (const auto handle = c10::Dispatcher::singleton().findSchema(*name)) {
      add_operator(node, handle->schema(), aliases, written);
    }
  }
  return written;
}

bool writes(const Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node& node) {
    const auto name = operator_name(node.target);
    const auto handle = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
    return (handle && handle->schema().is_mutable()) ||
           std::ranges::any_of(node.inputs, [](const NamedArgument& input) {
             const auto* inner = std::get_if<std::shared_ptr<const Graph>>(&input.argument.is);
             return inner != nullptr && writes(**inner);
           });
  });
}

Names written_weights(const SavedProgram& program) {
  const Names inputs = written_inputs(program.graph);
  Names weights;
  for (const InputSpec& input : program.inputs) {
    if (!input.target.empty() && inputs.contains(input.name)) weights.insert(input.target);
  }
  for (const OutputSpec& output : program.outputs) {
    if (output.kind == OutputKind::buffer_mutation ||
        output.kind == OutputKind::parameter_mutation) {
      weights.insert(output.target);
    }
  }
  return weights;
}

}  // namespace exporter::program
