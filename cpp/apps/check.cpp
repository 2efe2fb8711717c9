#include "check.h"

#include <exporter/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "measure.h"

namespace exporter::app {
namespace {

using nlohmann::ordered_json;

void compare_outputs(const std::vector<at::Tensor>& outputs, const GoldenCase& golden,
                     const Contract& contract, const Tolerance& tolerance, CaseResult& result) {
  if (outputs.size() != golden.eager.size()) {
    result.error = "the model gave " + std::to_string(outputs.size()) +
                   " outputs, the golden has " + std::to_string(golden.eager.size());
    return;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string name =
        i < contract.outputs.size() ? contract.outputs[i].name : std::to_string(i);
    result.outputs.push_back(
        compare(name, outputs[i], golden.eager[i], golden.reference[i], tolerance));
  }
}

CaseResult check_case(const Artifact& artifact, const GoldenCase& golden,
                      const Tolerance& tolerance) {
  CaseResult result{golden.name, golden.seed, "", {}, ""};
  try {
    artifact.contract().check(golden.inputs);
  } catch (const Error& error) {  // the golden may hold sizes that this route does not promise
    result.refused = error.what();
    return result;
  }
  try {
    const auto outputs = artifact.run(place(artifact, golden.inputs));
    artifact.synchronize();
    compare_outputs(outputs, golden, artifact.contract(), tolerance, result);
  } catch (const std::exception& error) {  // the other cases still have an answer
    result.error = error.what();
    result.outputs.clear();
  }
  return result;
}

ordered_json number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);  // NaN and Inf become null too
}

ordered_json to_json(const OutputParity& output) {
  return {{"output", output.output},
          {"verdict", to_string(output.verdict)},
          {"reason", output.reason},
          {"max_abs", number(output.max_abs)},
          {"max_rel", number(output.max_rel)},
          {"rmse", number(output.rmse)},
          {"eager_rmse", number(output.eager_rmse)},
          {"rmse_ratio", number(output.rmse_ratio)},
          {"cosine", number(output.cosine)},
          {"worst", output.worst}};
}

}  // namespace

Verdict CaseResult::verdict() const {
  if (!refused.empty()) return Verdict::exact;
  Verdict worst = error.empty() && !outputs.empty() ? Verdict::exact : Verdict::fail;
  for (const OutputParity& output : outputs) worst = std::max(worst, output.verdict);
  return worst;
}

Golden read_golden(const Options& options) {
  return Golden::read(options.golden, inspect(options.artifact).contract.precision);
}

std::vector<CaseResult> check(const Artifact& artifact, const Golden& golden,
                              const Tolerance& tolerance) {
  std::vector<CaseResult> results;
  for (const GoldenCase& one : golden.cases) {
    results.push_back(check_case(artifact, one, tolerance));
  }
  return results;
}

Verdict verdict_of(const std::vector<CaseResult>& cases) {
  if (std::ranges::all_of(cases, [](const CaseResult& one) { return !one.refused.empty(); })) {
    return Verdict::fail;
  }
  Verdict worst = Verdict::exact;
  for (const CaseResult& one : cases) worst = std::max(worst, one.verdict());
  return worst;
}

ordered_json to_json(const std::vector<CaseResult>& cases) {
  ordered_json list = ordered_json::array();
  for (const CaseResult& one : cases) {
    ordered_json outputs = ordered_json::array();
    for (const OutputParity& output : one.outputs) outputs.push_back(to_json(output));
    list.push_back(
        {{"case", one.name}, {"seed", one.seed}, {"error", one.error}, {"outputs", outputs}});
    if (!one.refused.empty()) list.back()["refused"] = one.refused;
  }
  return list;
}

}  // namespace exporter::app
