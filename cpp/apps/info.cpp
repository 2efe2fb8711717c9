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

void print_text(const ArtifactInfo& info, const std::filesystem::path& path) {
  const Contract& contract = info.contract;
  std::printf("%s: %s, target %s\n", path.c_str(), printable(contract.model).c_str(),
              printable(contract.target).c_str());
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

}  // namespace

int info(const Options& options) {
  const ArtifactInfo info = inspect(options.artifact);
  for (const auto& library : options.open.operators) load_operators(library);
  if (!options.json) {
    print_text(info, options.artifact);
    return 0;
  }
  const bool has_contract = !info.contract_json.empty();
  const nlohmann::ordered_json json = {
      {"artifact", options.artifact.string()},
      {"kind", to_string(info.kind)},
      {"bytes", info.bytes},
      {"contract", has_contract ? nlohmann::ordered_json::parse(info.contract_json) : nullptr}};
  std::printf("%s\n", json.dump(2, ' ', /*ensure_ascii=*/true).c_str());
  return 0;
}

}  // namespace exporter::app
