// Reads a contract. Every problem in the text becomes an Error that names the place.

#include <exporter/contract.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "expression.h"
#include "guard.h"
#include "json_fields.h"
#include "state_json.h"

namespace exporter {
namespace {

using nlohmann::json;

constexpr std::int64_t kSchema = 2;  // the latest; schema 1 is read too
constexpr std::string_view kPrecisions[] = {"fp32", "tf32",  "bf16", "fp16",
                                            "int8", "fp16w", "int8w"};

constexpr std::string_view kMixedPrecisions[] = {"bf16", "fp16", "int8", "fp16w", "int8w"};
constexpr std::string_view kKeptLayers = "+fp32:";

[[noreturn]] void malformed(const std::string& cause) { throw Error(ErrorKind::artifact, cause); }

/// Whether exporter knows a precision: a name, or one with layers in float32, as in int8+fp32:head.
bool is_precision(std::string_view text) {
  if (std::ranges::find(kPrecisions, text) != std::end(kPrecisions)) return true;
  const std::string_view base = text.substr(0, text.find('+'));
  return std::ranges::find(kMixedPrecisions, base) != std::end(kMixedPrecisions) &&
         text.substr(base.size()).starts_with(kKeptLayers) &&
         text.size() > base.size() + kKeptLayers.size();
}

/// Throws if the step is not positive or no size is allowed.
void require_sizes(const Symbol& symbol) {
  if (symbol.multiple_of < 1) malformed("multiple_of of " + symbol.name + " is not positive");
  const bool none =
      symbol.max < symbol.min ||
      (symbol.max >= 0 && symbol.max / symbol.multiple_of * symbol.multiple_of < symbol.min);
  if (symbol.choices.empty() && none)
    malformed(symbol.name + " has no allowed size: " + describe_range(symbol));
}

/// Returns the items of an optional list.
std::vector<json> items(const json& node, const char* name) {
  const auto found = node.find(name);
  if (found == node.end()) return {};
  if (!found->is_array()) malformed(std::string(name) + " is not a list");
  return found->get<std::vector<json>>();
}

std::vector<std::string> texts(const json& node, const char* name) {
  std::vector<std::string> found;
  for (const json& item : items(node, name)) found.push_back(item.get<std::string>());
  return found;
}

std::vector<Symbol> read_symbols(const json& node) {
  std::vector<Symbol> symbols;
  if (!node.is_object()) malformed("symbols is not an object");
  for (const auto& [name, range] : node.items()) {
    require_fields(range, name, {"min", "max", "choices", "multiple_of"});
    symbols.push_back({name, whole(range.at("min"), name), whole(range.at("max"), name)});
    if (range.contains("multiple_of")) {
      symbols.back().multiple_of = whole(range.at("multiple_of"), name);
    }
    for (const json& size : items(range, "choices")) {
      symbols.back().choices.push_back(whole(size, name));
    }
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
  if (node.is_null()) return AnySize{};
  if (node.is_number_integer()) {
    const std::int64_t size = whole(node, "a dimension");
    if (size < 0) malformed("a dimension is " + std::to_string(size));
    return FixedSize{size};
  }
  Expression expression = parse_expression(node.get<std::string>(), symbols);
  if (is_symbol(expression)) return SymbolSize{expression.symbol};
  return expression;
}

std::vector<TensorSpec> read_specs(const json& root, const char* list,
                                   const std::vector<Symbol>& symbols) {
  const bool is_state = std::string_view(list) == "tensors";  // these have an initial value
  std::vector<TensorSpec> specs;
  root.at(list);
  for (const json& item : items(root, list)) {
    require_fields(item, list, {"name", "dtype", "shape", is_state ? "initial" : "name"});
    const auto name = item.at("name").get<std::string>();
    const auto dtype = item.at("dtype").get<std::string>();
    const auto known = dtype_from_name(dtype);
    if (!known) malformed(name + " has an unknown dtype, " + dtype);
    TensorSpec spec{name, *known, {}};
    item.at("shape");
    for (const json& size : items(item, "shape"))
      spec.shape.push_back(read_dimension(size, symbols));
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::optional<State> read_state(const json& root, const std::vector<Symbol>& symbols) {
  const auto node = root.find("state");
  if (node == root.end() || node->is_null()) return std::nullopt;
  require_fields(*node, "state", {"kept", "tensors"});
  return read_state(*node, read_specs(*node, "tensors", symbols));
}

std::vector<Sizes> read_entries(const json& root, const std::vector<Symbol>& symbols) {
  std::vector<Sizes> entries;
  for (const json& node : items(root, "entries")) {
    Sizes sizes;
    if (!node.is_object() || node.empty()) malformed("an entry has no sizes");
    for (const auto& [name, value] : node.items()) {
      const auto size = whole(value, name);
      if (!symbols[index_of(name, symbols)].allows(size)) {
        malformed("there is an entry for " + name + " = " + std::to_string(size) +
                  ", which is not allowed");
      }
      sizes.emplace(name, size);
    }
    const auto same_name = [](const auto& one, const auto& other) {
      return one.first == other.first;
    };
    if (!entries.empty() && !std::ranges::equal(entries.front(), sizes, same_name)) {
      malformed("its entries have sizes of different symbols");
    }
    entries.push_back(std::move(sizes));
  }
  const bool choices =
      std::ranges::any_of(symbols, [](const Symbol& symbol) { return !symbol.choices.empty(); });
  if (!entries.empty() && choices) malformed("it has entries beside choices");
  return entries;
}

std::optional<Build> read_build(const json& root) {
  const auto node = root.find("build");
  if (node == root.end() || node->is_null()) return std::nullopt;
  require_fields(*node, "build", {"isa", "level", "capability", "cuda", "driver"});
  return Build{texts(*node, "isa"), node->value("level", ""), node->value("capability", ""),
               node->value("cuda", ""), node->value("driver", "")};
}

/// Checks the constants, although callers do not pass them, because Python's reader checks them
/// too.
void require_constants(const json& root) {
  const auto node = root.find("constants");
  if (node == root.end()) return;
  if (!node->is_object()) malformed("constants is not an object");
  for (const auto& [name, value] : node->items()) {
    if (!value.is_primitive() || value.is_null()) {
      malformed("constant " + name + " is not a number, a bool or a string");
    }
  }
}

Contract read_contract(std::string_view text) {
  const json root = parse_json(text);
  const auto schema = whole(root.at("schema"), "schema");
  if (schema < 1 || schema > kSchema) {
    malformed("schema " + std::to_string(schema) + " is not known, only 1 to " +
              std::to_string(kSchema));
  }
  require_fields(root, "the contract",
                 {"schema", "model", "target", "device", "torch", "precision", "symbols", "inputs",
                  "outputs", "ops", "build", "state", "constants", "entries"});
  require_constants(root);
  Contract contract;
  contract.model = root.at("model").get<std::string>();
  contract.target = root.at("target").get<std::string>();
  contract.device = root.at("device").get<std::string>();
  contract.torch = root.value("torch", "");
  contract.precision = root.value("precision", "fp32");
  contract.symbols = read_symbols(root.at("symbols"));
  contract.inputs = read_specs(root, "inputs", contract.symbols);
  contract.outputs = read_specs(root, "outputs", contract.symbols);
  contract.operators = texts(root, "ops");
  contract.build = read_build(root);
  contract.state = read_state(root, contract.symbols);
  contract.entries = read_entries(root, contract.symbols);
  require_places(contract);
  if (contract.device != "cpu" && contract.device != "cuda") {
    malformed("device " + contract.device + " is neither cpu nor cuda");
  }
  if (!is_precision(contract.precision)) malformed("there is no precision " + contract.precision);
  if (contract.target.empty()) malformed("target is empty");
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
