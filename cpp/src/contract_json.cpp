// Reads a contract. Whatever is wrong with the text is an Error that says where.

#include <exporter/contract.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "expression.h"
#include "guard.h"
#include "state_json.h"

namespace exporter {
namespace {

using nlohmann::json;

constexpr std::int64_t kSchema = 2;  // the latest; the first is read too

[[noreturn]] void malformed(const std::string& cause) { throw Error(ErrorKind::artifact, cause); }

/// Throws for a step that is none, and where no size is left.
void require_sizes(const Symbol& symbol) {
  if (symbol.multiple_of < 1) malformed("multiple_of of " + symbol.name + " is not positive");
  const bool none =
      symbol.max < symbol.min ||
      (symbol.max >= 0 && symbol.max / symbol.multiple_of * symbol.multiple_of < symbol.min);
  if (symbol.choices.empty() && none)
    malformed(symbol.name + " has no size: " + describe_range(symbol));
}

std::vector<Symbol> read_symbols(const json& node) {
  std::vector<Symbol> symbols;
  for (const auto& [name, range] : node.items()) {
    symbols.push_back({name, range.at("min").get<std::int64_t>(),
                       range.at("max").get<std::int64_t>(),
                       range.value("choices", std::vector<std::int64_t>()),
                       range.value("multiple_of", std::int64_t{1})});
    require_sizes(symbols.back());
  }
  return symbols;
}

std::size_t index_of(const std::string& name, const std::vector<Symbol>& symbols) {
  const auto found = std::find_if(symbols.begin(), symbols.end(),
                                  [&](const Symbol& symbol) { return symbol.name == name; });
  if (found == symbols.end()) malformed("symbol " + name + " has no range");
  return static_cast<std::size_t>(found - symbols.begin());
}

Dimension read_dimension(const json& node, const std::vector<Symbol>& symbols) {
  if (node.is_null()) return std::monostate{};
  if (node.is_number_integer()) return node.get<std::int64_t>();
  const auto text = node.get<std::string>();
  auto [name, expression] = parse_expression(text);
  expression.symbol = index_of(name, symbols);
  if (name == text) return expression.symbol;
  return expression;
}

std::vector<TensorSpec> read_specs(const json& node, const std::vector<Symbol>& symbols) {
  std::vector<TensorSpec> specs;
  for (const json& item : node) {
    const auto name = item.at("name").get<std::string>();
    const auto dtype = item.at("dtype").get<std::string>();
    const auto known = dtype_from_name(dtype);
    if (!known) malformed(name + " has an unknown dtype, " + dtype);
    TensorSpec spec{name, *known, {}};
    for (const json& size : item.at("shape")) spec.shape.push_back(read_dimension(size, symbols));
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::optional<State> read_state(const json& root, const std::vector<Symbol>& symbols) {
  const auto node = root.find("state");
  if (node == root.end() || node->is_null()) return std::nullopt;
  return read_state(*node, read_specs(node->at("tensors"), symbols));
}

std::optional<Build> read_build(const json& root) {
  const auto node = root.find("build");
  if (node == root.end() || node->is_null()) return std::nullopt;
  return Build{node->value("isa", std::vector<std::string>{}), node->value("level", ""),
               node->value("capability", ""), node->value("cuda", ""), node->value("driver", "")};
}

Contract read_contract(std::string_view text) {
  const json root = json::parse(text);
  const auto schema = root.at("schema").get<std::int64_t>();
  if (schema < 1 || schema > kSchema) {
    malformed("schema " + std::to_string(schema) + " is not known, only 1 to " +
              std::to_string(kSchema));
  }
  Contract contract;
  contract.model = root.at("model").get<std::string>();
  contract.target = root.at("target").get<std::string>();
  contract.device = root.at("device").get<std::string>();
  contract.torch = root.value("torch", "");
  contract.precision = root.value("precision", "fp32");
  contract.symbols = read_symbols(root.at("symbols"));
  contract.inputs = read_specs(root.at("inputs"), contract.symbols);
  contract.outputs = read_specs(root.at("outputs"), contract.symbols);
  contract.operators = root.value("ops", std::vector<std::string>{});
  contract.build = read_build(root);
  contract.state = read_state(root, contract.symbols);
  require_places(contract);
  if (contract.device != "cpu" && contract.device != "cuda") {
    malformed("device " + contract.device + " is neither cpu nor cuda");
  }
  return contract;
}

}  // namespace

Contract Contract::parse(std::string_view json, std::string_view where) {
  const std::string what = std::string(where) + ": the contract cannot be read";
  try {
    return guarded(ErrorKind::artifact, what, [&] { return read_contract(json); });
  } catch (const Error& error) {
    const std::string_view cause = error.what();
    if (cause.starts_with(what)) throw;
    throw Error(ErrorKind::artifact, what + ": " + error.what());
  }
}

}  // namespace exporter
