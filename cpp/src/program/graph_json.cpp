#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../json_fields.h"
#include "codes.h"
#include "device_json.h"
#include "graph.h"

namespace exporter::program {
namespace {

using nlohmann::json;

constexpr std::int64_t kSchemaMajor = 8;
constexpr int kMaxGraphDepth = 64;  // of graphs in graphs

/// The cause for which a part of the file cannot be what torch wrote.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void damaged(const std::string& part, std::string_view cause) {
  throw std::runtime_error(part + " is damaged, copy or export it again: " + std::string(cause));
}

/// Returns the name and the value of the only field that is set in a union.
std::pair<std::string, const json*> chosen(const json& node, std::string_view what) {
  if (!node.is_object() || node.size() != 1) throw Malformed(std::string(what) + " is not a union");
  return {node.begin().key(), &node.begin().value()};
}

/// Reads a part of the file. Throws std::runtime_error that names the part if it is malformed.
template <typename Read>
auto part(const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const Malformed& error) {
    damaged(name, error.what());
  } catch (const json::exception& error) {
    const std::string_view cause = error.what();  // "[json.exception.out_of_range.403] CAUSE"
    const auto start = cause.find("] ");
    damaged(name, cause.substr(start == std::string_view::npos ? 0 : start + 2));
  }
}

const std::string& text(const json& node) { return node.get_ref<const std::string&>(); }

class GraphReader {
 public:
  Graph graph(const json& node) {
    if (++depth_ > kMaxGraphDepth) throw Malformed("graphs are nested too deeply");
    Graph graph;
    for (const json& input : node.at("inputs")) graph.inputs.push_back(argument(input));
    for (const json& output : node.at("outputs")) graph.outputs.push_back(argument(output));
    graph.nodes.reserve(node.at("nodes").size());
    for (const json& item : node.at("nodes")) {
      const auto number = std::to_string(graph.nodes.size());
      graph.nodes.push_back(
          part("node " + number + " of its graph", [&] { return read_node(item); }));
    }
    read_tensors(graph.inputs, node.at("tensor_values"), graph);
    read_tensors(graph.outputs, node.at("tensor_values"), graph);
    for (const json& output : node.at("outputs")) read_number(output, graph);
    --depth_;
    return graph;
  }

 private:
  static void read_tensors(const std::vector<Argument>& named, const json& values, Graph& graph) {
    for (const Argument& argument : named) {
      const auto* value = std::get_if<Reference>(&argument.is);
      if (value == nullptr) continue;
      const auto found = values.find(value->name);
      if (found != values.end()) graph.tensors[value->name] = tensor_meta(*found);
    }
  }

  static void read_number(const json& output, Graph& graph) {
    static const std::map<std::string, at::ScalarType> kDtypes = {
        {"as_sym_int", at::kLong}, {"as_sym_bool", at::kBool}, {"as_sym_float", at::kDouble}};
    const auto [kind, value] = chosen(output, "an output");
    const auto dtype = kDtypes.find(kind);
    if (dtype == kDtypes.end() || !value->contains("as_name")) return;
    graph.numbers[text(value->at("as_name"))] = dtype->second;
  }

  static TensorMeta tensor_meta(const json& node) {
    TensorMeta meta;
    meta.dtype = dtype_of_code(node.at("dtype").get<std::int64_t>());
    meta.device = device_of(node.at("device"));
    for (const json& size : node.at("sizes")) {
      const auto [kind, value] = chosen(size, "a size");
      if (kind == "as_int") {
        meta.sizes.emplace_back(value->get<std::int64_t>());
      } else {
        meta.sizes.emplace_back(SymbolicSize{text(value->at("expr_str")), hint_of(*value)});
      }
    }
    return meta;
  }

  static std::optional<std::int64_t> hint_of(const json& size) {
    const auto hint = size.find("hint");
    if (hint == size.end() || !hint->is_object()) return std::nullopt;
    const auto number = hint->find("as_int");
    if (number == hint->end() || !number->is_number_integer()) return std::nullopt;
    return number->get<std::int64_t>();
  }

  Argument argument(const json& node) {
    const auto [kind, value] = chosen(node, "an argument");
    if (kind == "as_tensor") return {Reference{text(value->at("name"))}};
    if (kind == "as_graph") return {std::make_shared<Graph>(graph(value->at("graph")))};
    if (kind == "as_none") return {c10::IValue()};
    if (kind.starts_with("as_sym_") || kind == "as_optional_tensor") {
      return value->is_array() ? list(*value, &GraphReader::element) : element(*value);
    }
    if (kind == "as_tensors") return list(*value, &GraphReader::named);
    if (kind == "as_optional_tensors") return list(*value, &GraphReader::element);
    if (kind == "as_ints" || kind == "as_bools" || kind == "as_strings") {
      return list(*value, &GraphReader::constant);
    }
    if (kind == "as_int_lists") return list(*value, &GraphReader::constants);
    if (kind == "as_float") return real(*value);
    if (kind == "as_floats") return list(*value, &GraphReader::real);
    if (kind == "as_float_lists") return list(*value, &GraphReader::reals);
    if (kind == "as_scalar_type") return {dtype_of_code(value->get<std::int64_t>())};
    if (kind == "as_memory_format") return {memory_format_of_code(value->get<std::int64_t>())};
    if (kind == "as_layout") return {layout_of_code(value->get<std::int64_t>())};
    if (kind == "as_device") return {device_of(*value)};
    if (kind == "as_complex") {
      return {c10::complex<double>(real_of(value->at("real")), real_of(value->at("imag")))};
    }
    if (kind == "as_custom_obj") {
      throw std::runtime_error("it holds an object of the class " + text(value->at("class_fqn")) +
                               ", which only Python can load");
    }
    if (kind == "as_int" || kind == "as_bool" || kind == "as_string") {
      return constant(*value);
    }
    throw std::runtime_error("it has an operand of an unknown kind, " + kind);
  }

  Argument constant(const json& node) {
    if (node.is_boolean()) return {node.get<bool>()};
    if (node.is_number_integer()) return {node.get<std::int64_t>()};
    if (node.is_number()) return {node.get<double>()};
    return {text(node)};
  }

  Argument constants(const json& node) { return list(node, &GraphReader::constant); }

  /// Reads a float. JSON has neither infinity nor NaN, so torch writes their names.
  static double real_of(const json& node) {
    if (!node.is_string()) return node.get<double>();
    const std::string name = text(node);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (name == "Infinity") return kInfinity;
    if (name == "-Infinity") return -kInfinity;
    if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
    throw std::runtime_error("it has a float that is no number, " + name);
  }

  Argument real(const json& node) { return {real_of(node)}; }

  Argument reals(const json& node) { return list(node, &GraphReader::real); }

  Argument named(const json& node) { return {Reference{text(node.at("name"))}}; }

  /// Reads an element that is either a value or a constant: {"as_name": …}, {"as_int": …}.
  Argument element(const json& node) {
    const auto [kind, value] = chosen(node, "an operand");
    return kind == "as_name" ? Argument{Reference{text(*value)}} : argument(node);
  }

  Argument list(const json& node, Argument (GraphReader::*read)(const json&)) {
    std::vector<Argument> items;
    items.reserve(node.size());
    for (const json& item : node) items.push_back((this->*read)(item));
    return {std::move(items)};
  }

  Node read_node(const json& node) {
    Node made{text(node.at("target")), {}, {}, {}, {}};
    for (const json& input : node.at("inputs")) {
      const auto kind = input.find("kind");
      const bool is_keyword = kind != input.end() && *kind == 2;
      made.inputs.push_back({text(input.at("name")), argument(input.at("arg")), is_keyword});
    }
    for (const json& output : node.at("outputs")) made.outputs.push_back(result(output));
    const auto metadata = node.find("metadata");
    if (metadata != node.end() && metadata->is_object()) {
      made.stack_trace = metadata->value("stack_trace", "");
      made.module_stack = metadata->value("nn_module_stack", "");
    }
    return made;
  }

  Result result(const json& node) {
    const Argument read = argument(node);
    if (const auto* value = std::get_if<Reference>(&read.is)) return {{value->name}, false};
    Result found{{}, false};
    if (const auto* items = std::get_if<std::vector<Argument>>(&read.is)) {
      found.is_list = true;
      for (const Argument& item : *items) {
        const auto* value = std::get_if<Reference>(&item.is);
        found.names.push_back(value == nullptr ? std::string() : value->name);
      }
    }
    return found;
  }

  int depth_ = 0;
};

InputSpec read_input(const json& node) {
  const auto [kind, value] = chosen(node, "an input");
  const auto name = [value = value] { return text(value->at("arg").at("name")); };
  if (kind == "parameter") return {InputKind::parameter, name(), text(value->at("parameter_name"))};
  if (kind == "buffer") return {InputKind::buffer, name(), text(value->at("buffer_name"))};
  if (kind == "tensor_constant") {
    return {InputKind::constant, name(), text(value->at("tensor_constant_name"))};
  }
  if (kind == "constant_input") return {InputKind::fixed, text(value->at("name")), {}};
  if (kind == "user_input") {
    const auto [type, argument] = chosen(value->at("arg"), "an input");
    if (type == "as_tensor") return {InputKind::user, text(argument->at("name")), {}};
    if (type == "as_none") return {InputKind::fixed, {}, {}};
    if (type == "as_sym_int") {
      throw std::runtime_error("its input " + argument->value("as_name", "") +
                               " is a number that varies, which is not supported: pass a tensor");
    }
  }
  throw std::runtime_error("it has an input of the kind " + kind + ", which only Python can run");
}

OutputSpec read_output(const json& node) {
  const auto [kind, value] = chosen(node, "an output");
  if (kind == "user_output") return {OutputKind::user, {}};
  if (kind == "buffer_mutation") {
    return {OutputKind::buffer_mutation, text(value->at("buffer_name"))};
  }
  if (kind == "parameter_mutation") {
    return {OutputKind::parameter_mutation, text(value->at("parameter_name"))};
  }
  if (kind == "user_input_mutation") {
    return {OutputKind::input_mutation, text(value->at("user_input_name"))};
  }
  throw std::runtime_error("it has an output of the kind " + kind + ", which only Python can run");
}

std::optional<std::int64_t> bound(const json& node) {
  if (!node.is_number_integer()) return std::nullopt;
  return node.get<std::int64_t>();
}

}  // namespace

SavedProgram parse_program(std::string_view text_of_json) {
  const json root = part("its JSON", [&] { return parse_json(text_of_json); });
  const auto major = part("its schema version", [&] {
    return root.at("schema_version").at("major").get<std::int64_t>();
  });
  if (major != kSchemaMajor) {
    throw std::runtime_error("its format is torch.export's schema " + std::to_string(major) +
                             ", only " + std::to_string(kSchemaMajor) +
                             " is known: export it with torch 2.11 to 2.14");
  }
  SavedProgram program;
  program.graph =
      part("its graph", [&] { return GraphReader().graph(root.at("graph_module").at("graph")); });
  part("its signature", [&] {
    const json& signature = root.at("graph_module").at("signature");
    for (const json& spec : signature.at("input_specs")) program.inputs.push_back(read_input(spec));
    for (const json& spec : signature.at("output_specs")) {
      program.outputs.push_back(read_output(spec));
    }
  });
  if (program.inputs.size() != program.graph.inputs.size() ||
      program.outputs.size() != program.graph.outputs.size()) {
    damaged("its signature", "it has another number of inputs or outputs than its graph");
  }
  part("range_constraints of its sizes", [&] {
    for (const auto& [name, range] : root.at("range_constraints").items()) {
      program.ranges[name] = {bound(range.at("min_val")), bound(range.at("max_val"))};
    }
  });
  part("guards_code of its sizes", [&] {
    for (const json& guard : root.value("guards_code", json::array())) {
      program.guards.push_back(text(guard));
    }
  });
  program.torch = part("its torch version", [&] { return root.value("torch_version", ""); });
  return program;
}

}  // namespace exporter::program
