#include <exporter/operators.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "printable.h"

namespace exporter::app {
namespace {

void print_specs(const char* title, const std::vector<TensorSpec>& specs,
                 const Contract& contract) {
  std::printf("%s\n", title);
  for (const TensorSpec& spec : specs) {
    std::printf("  %-24s %-9s %s\n", printable(spec.name).c_str(), dtype_name(spec.dtype).c_str(),
                printable(describe_shape(spec, contract)).c_str());
  }
}

void print_build(const Contract& contract) {
  if (!contract.build) return;
  const Build& build = *contract.build;
  std::string sets = build.level;
  for (const std::string& name : build.isa) {
    if (build.level.empty()) sets += (sets.empty() ? "" : " ") + name;
  }
  if (!sets.empty()) std::printf("  built for %s\n", printable(sets).c_str());
  if (!build.capability.empty()) {
    std::printf("  built for compute capability %s, with CUDA %s and driver %s\n",
                printable(build.capability).c_str(), printable(build.cuda).c_str(),
                printable(build.driver).c_str());
  }
  const std::string obstacle = cpu_obstacle(contract);
  if (!obstacle.empty()) std::printf("  cannot run here: it %s\n", printable(obstacle).c_str());
}

void print_entries(const std::vector<Sizes>& entries) {
  if (entries.empty()) return;
  std::printf("entries, models for exactly these sizes\n");
  for (const Sizes& entry : entries) {
    std::string line;
    for (const auto& [name, size] : entry) {
      line += (line.empty() ? "" : ", ") + printable(name) + " = " + std::to_string(size);
    }
    std::printf("  %s\n", line.c_str());
  }
}

void print_text(const ArtifactInfo& info, const std::filesystem::path& path) {
  const Contract& contract = info.contract;
  // A program that exporter did not write says nothing about its precision.
  const std::string precision =
      info.contract_json.empty() ? "" : ", precision " + printable(contract.precision);
  std::printf("%s: %s, target %s%s\n", path.c_str(), printable(contract.model).c_str(),
              printable(contract.target).c_str(), precision.c_str());
  std::printf("  %s for %s, %.1f MB, exported by torch %s\n", to_string(info.kind),
              printable(contract.device).c_str(), static_cast<double>(info.bytes) / 1e6,
              contract.torch.empty() ? "?" : printable(contract.torch).c_str());
  print_build(contract);
  print_specs("inputs", contract.inputs, contract);
  print_specs("outputs", contract.outputs, contract);
  if (!contract.symbols.empty()) std::printf("symbols\n");
  for (const Symbol& symbol : contract.symbols) {
    std::printf("  %-24s %s\n", printable(symbol.name).c_str(), describe_range(symbol).c_str());
  }
  print_entries(contract.entries);
  if (contract.keeps_state()) {
    std::vector<TensorSpec> specs;
    for (const auto& tensor : contract.state->tensors) specs.push_back(tensor.spec);
    print_specs("state, kept by the artifact", specs, contract);
  } else if (contract.state) {
    std::printf(
        "state, kept by the caller: pass the last %zu outputs of each call as the last inputs of "
        "the next\n",
        contract.state->tensors.size());
  }
  if (!contract.operators.empty()) std::printf("operators\n");
  for (const std::string& name : contract.operators) {
    std::printf("  %-24s %s\n", printable(name).c_str(),
                has_operators(name) ? "registered" : "not registered");
  }
}

using nlohmann::ordered_json;

ordered_json to_json(const Dimension& dimension, const Contract& contract) {
  if (std::holds_alternative<AnySize>(dimension)) return nullptr;
  if (const auto* fixed = std::get_if<FixedSize>(&dimension)) return fixed->size;
  const std::string text = describe_shape({"", at::kFloat, {dimension}}, contract);
  return text.substr(1, text.size() - 2);  // without brackets
}

ordered_json to_json(const std::vector<TensorSpec>& specs, const Contract& contract) {
  auto list = ordered_json::array();
  for (const TensorSpec& spec : specs) {
    auto shape = ordered_json::array();
    for (const Dimension& dimension : spec.shape) shape.push_back(to_json(dimension, contract));
    list.push_back({{"name", spec.name}, {"dtype", dtype_name(spec.dtype)}, {"shape", shape}});
  }
  return list;
}

/// Returns the contract of a program that has none of its own, in the format of docs/formats.md,
/// without the values of its state.
ordered_json to_json(const Contract& contract) {
  auto symbols = ordered_json::object();
  for (const Symbol& symbol : contract.symbols) {
    symbols[symbol.name] = {{"min", symbol.min}, {"max", symbol.max}};
  }
  ordered_json state;
  if (contract.state) {
    std::vector<TensorSpec> specs;
    for (const auto& tensor : contract.state->tensors) specs.push_back(tensor.spec);
    state = {{"kept", "inside"}, {"tensors", to_json(specs, contract)}};
  }
  return {{"model", contract.model},
          {"inputs", to_json(contract.inputs, contract)},
          {"outputs", to_json(contract.outputs, contract)},
          {"symbols", symbols},
          {"target", contract.target},
          {"device", contract.device},
          {"torch", contract.torch},
          {"state", state},
          {"schema", 2}};
}

}  // namespace

int info(const Options& options) {
  const ArtifactInfo info = inspect(options.artifact);
  for (const auto& library : options.open.operators) load_operators(library);
  if (!options.json) {
    print_text(info, options.artifact);
    return 0;
  }
  const bool has_contract = !info.contract_json.empty();
  const ordered_json json = {{"artifact", options.artifact.string()},
                             {"kind", to_string(info.kind)},
                             {"bytes", info.bytes},
                             {"derived", !has_contract},
                             {"contract", has_contract ? ordered_json::parse(info.contract_json)
                                                       : to_json(info.contract)}};
  std::printf(
      "%s\n",
      json.dump(2, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace exporter::app
