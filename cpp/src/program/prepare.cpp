#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "instructions.h"

namespace exporter::program {
namespace {

constexpr std::string_view kNoModule = "_empty_nn_module_stack";  // torch's mark
constexpr std::string_view kWrappers[] = {"exporter.model.flattening.", "exporter.model.state."};
constexpr std::string_view kOwnFile = "exporter/";

bool is_wrapper(std::string_view python_class) {
  return std::ranges::any_of(kWrappers,
                             [&](auto prefix) { return python_class.starts_with(prefix); });
}

std::unique_ptr<const Instruction> prepare_node(const Node& node, Scope& scope) {
  if (const auto name = operator_name(node.target)) {
    if (auto step = number_step(node, scope)) return step;
    return operator_call(node, *name, scope);
  }
  if (auto step = control_flow(node, scope)) return step;
  if (auto step = number_step(node, scope)) return step;
  throw std::runtime_error("it needs Python");
}

/// "torch.ops.aten.add.Tensor" as "aten.add.Tensor".
std::string short_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  return target.starts_with(kPrefix) ? target.substr(kPrefix.size()) : target;
}

/// Returns the path of the innermost module, from the model on: "encoder.layer.0". torch.export
/// writes "KEY,PATH,CLASS" for each module, with the modules that exporter puts around the model.
std::string module_of(const Node& node) {
  std::istringstream entries(node.module_stack);
  std::string path, model;
  bool is_own = false;
  for (std::string entry; std::getline(entries, entry, ';');) {
    const auto first = entry.find(','), second = entry.find(',', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    path = entry.substr(first + 1, second - first - 1);
    const bool was_own = std::exchange(is_own, is_wrapper(entry.substr(second + 1)));
    if (was_own && !is_own) model = path;
  }
  const bool has_module = !is_own && !path.starts_with(kNoModule);
  if (!has_module || path == model) return {};
  return path.starts_with(model + ".") ? path.substr(model.size() + 1) : path;
}

std::string problem(const Node& node, std::string_view cause) {
  const std::string place = place_of(node);
  return short_name(node.target) + (place.empty() ? "" : " at " + place) + ": " +
         std::string(cause);
}

}  // namespace

std::string place_of(const Node& node) {
  // Python's traceback: `File "PATH", line N, in NAME`, innermost last. Code of torch is left out,
  // except a layer's if the model has no line of its own.
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kLayers = "torch/nn/modules/";
  std::string place, layer;
  bool is_wrapped = false;
  const std::string& trace = node.stack_trace;
  for (auto at = trace.find(kFile); at != std::string::npos; at = trace.find(kFile, at + 1)) {
    const auto start = at + kFile.size(), end = trace.find(kLine, start);
    if (end == std::string::npos) break;
    const std::string path = trace.substr(start, end - start);
    if (path.starts_with("<")) continue;
    if (path.starts_with(kOwnFile)) {
      is_wrapped = true;
      continue;
    }
    const auto number = end + kLine.size();
    const auto stop = trace.find_first_not_of("0123456789", number);
    const auto slash = path.rfind('/');
    const std::string line = path.substr(slash == std::string::npos ? 0 : slash + 1) + ":" +
                             trace.substr(number, stop - number);
    const bool is_torch = path.starts_with("torch/") || path.find("/torch/") != std::string::npos;
    if (!is_torch) {
      place = line;
    } else if (path.find(kLayers) != std::string::npos && !path.ends_with("/module.py")) {
      layer = line;
    }
  }
  if (place.empty()) place = layer;
  return place.empty() && is_wrapped ? "exporter" : place;
}

Routine prepare_graph(const Graph& graph, const std::vector<std::string>& inputs,
                      const std::map<std::string, c10::IValue>& weights, Context& context) {
  Scope scope(graph, context, inputs);
  for (const auto& [name, value] : weights) scope.define(name, value);
  Routine routine;
  routine.inputs = inputs.size();
  for (const Node& node : graph.nodes) {
    try {
      auto instruction = prepare_node(node, scope);
      routine.steps.push_back({std::move(instruction), short_name(node.target), place_of(node),
                               module_of(node), scope.slots_of(node)});
    } catch (const std::exception& error) {
      context.problems.push_back(problem(node, error.what()));
      scope.targets(node);
    }
  }
  for (const Argument& output : graph.outputs) routine.outputs.push_back(scope.bind(output));
  routine.slots = scope.slots();
  return routine;
}

}  // namespace exporter::program
