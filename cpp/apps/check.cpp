#include "check.h"

#include <exporter/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "measure.h"

namespace exporter::app {
namespace {

using nlohmann::ordered_json;

/// Returns the tolerance for each output.
std::vector<Tolerance> limits_of(const Golden& golden) {
  std::vector<std::vector<at::Tensor>> references;
  for (const GoldenCase& one : golden.cases) references.push_back(one.reference);
  const std::vector<double> typical = typical_sizes(references);
  const auto count = [](const GoldenCase& one) { return one.eager.size(); };
  const GoldenCase& longest = *std::ranges::max_element(golden.cases, {}, count);
  std::vector<Tolerance> limits;
  for (std::size_t output = 0; output < typical.size(); ++output) {
    limits.push_back(golden.tolerance_of(longest.eager[output]));
    limits.back().typical = typical[output];
  }
  return limits;
}

void compare_outputs(const std::vector<at::Tensor>& outputs, const GoldenCase& golden,
                     const Contract& contract, const std::vector<Tolerance>& limits,
                     CaseResult& result) {
  if (outputs.size() != golden.eager.size()) {
    result.error = "the model returned " + std::to_string(outputs.size()) +
                   " outputs, the golden has " + std::to_string(golden.eager.size());
    return;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string name =
        i < contract.outputs.size() ? contract.outputs[i].name : std::to_string(i);
    const at::Tensor &eager = golden.eager[i], &reference = golden.reference[i];
    result.outputs.push_back(
        golden.stored.empty()
            ? compare(name, outputs[i], eager, reference, limits[i])
            : compare_stored(name, outputs[i], eager, reference, golden.stored[i], limits[i]));
  }
}

/// Returns whether the contract does not allow one of the sizes.
bool is_outside(const Sizes& sizes, const Contract& contract) {
  return std::ranges::any_of(contract.symbols, [&](const Symbol& symbol) {
    const auto found = sizes.find(symbol.name);
    return found != sizes.end() && !symbol.allows(found->second);
  });
}

/// Runs and judges cases in order. Passes the state of each step to the next.
class Judge {
 public:
  Judge(const Artifact& artifact, std::vector<Tolerance> limits)
      : artifact_(artifact), limits_(std::move(limits)) {}

  CaseResult check(const GoldenCase& golden) {
    CaseResult result{golden.name, golden.seed, golden.step, "", "", {}, false};
    result.outside = is_outside(golden.sizes, artifact_.contract());
    const bool begins = golden.step.value_or(0) == 0;
    if (begins) refused_.clear();
    if (!begins && failed_) {
      result.refused = refused_;
      if (refused_.empty()) result.error = "the previous step failed";
      return result;
    }
    failed_ = true;
    try {
      if (begins) begin();
      const auto outputs = artifact_.run(with_state(golden.inputs));
      artifact_.synchronize();
      keep_state(outputs);
      compare_outputs(outputs, golden, artifact_.contract(), limits_, result);
      failed_ = !result.error.empty();
    } catch (const Error& error) {  // the remaining cases still run
      const bool refuses = error.kind() == ErrorKind::contract;
      (refuses ? result.refused : result.error) = error.what();
      refused_ = result.refused;
      result.outputs.clear();
    } catch (const std::exception& error) {
      result.error = error.what();
      result.outputs.clear();
    }
    return result;
  }

 private:
  void begin() {
    artifact_.reset();
    state_.clear();
  }

  /// Adds the state that the artifact returned to the inputs of a later step, which lack it.
  std::vector<at::Tensor> with_state(const std::vector<at::Tensor>& given) const {
    auto inputs = place(artifact_, given);
    if (inputs.size() == artifact_.contract().own_inputs()) {
      inputs.insert(inputs.end(), state_.begin(), state_.end());
    }
    return inputs;
  }

  void keep_state(const std::vector<at::Tensor>& outputs) {
    const std::size_t own = artifact_.contract().own_outputs();
    state_.clear();
    for (std::size_t i = own; i < outputs.size(); ++i) state_.push_back(outputs[i].clone());
  }

  const Artifact& artifact_;
  const std::vector<Tolerance> limits_;  // by output
  std::vector<at::Tensor> state_;
  std::string refused_;  // why the contract refused the sequence
  bool failed_ = false;
};

ordered_json number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);  // dump() writes NaN and Inf as null
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
          {"worst", output.worst},
          {"cause", output.cause}};
}

}  // namespace

Verdict CaseResult::verdict() const {
  if (outside) return refused.empty() ? Verdict::fail : Verdict::exact;
  Verdict worst = error.empty() && !outputs.empty() ? Verdict::exact : Verdict::fail;
  for (const OutputParity& output : outputs) worst = std::max(worst, output.verdict);
  return worst;
}

void require_golden(const Options& options) {
  if (!options.has_default_golden || std::filesystem::exists(options.golden)) return;
  const bool has_contract = !inspect(options.artifact).contract_json.empty();
  throw Error(ErrorKind::golden,
              options.artifact.string() +
                  (has_contract ? " has no golden beside it, " + options.golden.string() +
                                      ": give --golden FILE, or use its bundle"
                                : " has no golden, because exporter did not export it: give "
                                  "--golden FILE, or export it with `exporter export`"));
}

Golden read_golden(const Options& options) {
  require_golden(options);
  return Golden::read(options.golden, inspect(options.artifact).contract.precision);
}

std::vector<CaseResult> check(const Artifact& artifact, const Golden& golden) {
  std::vector<CaseResult> results;
  Judge judge(artifact, limits_of(golden));
  for (const GoldenCase& one : golden.cases) results.push_back(judge.check(one));
  return results;
}

Verdict verdict_of(const std::vector<CaseResult>& cases) {
  const bool all_refused =
      std::ranges::all_of(cases, [](const CaseResult& one) { return !one.refused.empty(); });
  Verdict worst = all_refused ? Verdict::fail : Verdict::exact;
  for (const CaseResult& one : cases) worst = std::max(worst, one.verdict());
  return worst;
}

ordered_json to_json(const std::vector<CaseResult>& cases) {
  ordered_json list = ordered_json::array();
  for (const CaseResult& one : cases) {
    ordered_json outputs = ordered_json::array();
    for (const OutputParity& output : one.outputs) outputs.push_back(to_json(output));
    const std::string& error = one.error.empty() ? one.refused : one.error;
    list.push_back(
        {{"case", one.name}, {"seed", one.seed}, {"error", error}, {"outputs", outputs}});
    if (!one.refused.empty()) list.back()["refused"] = one.refused;
  }
  return list;
}

}  // namespace exporter::app
