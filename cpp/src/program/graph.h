#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace exporter::program {

struct Graph;

/// A value of the graph, by its name.
struct Reference {
  std::string name;
};

/// An operand as the file has it: a constant, a value, a list of operands, or a graph.
struct Argument {
  std::variant<c10::IValue, Reference, std::vector<Argument>, std::shared_ptr<const Graph>> is;
};

struct NamedArgument {
  std::string name;  ///< empty for operands of control flow
  Argument argument;
  bool is_keyword;
};

/// The names of one result; a list of tensors has several.
struct Result {
  std::vector<std::string> names;  ///< empty for a result without a value
  bool is_list;
};

struct Node {
  std::string target;  ///< such as "torch.ops.aten.add.Tensor" or "_operator.mul"
  std::vector<NamedArgument> inputs;
  std::vector<Result> outputs;
  std::string stack_trace;   ///< of the model's code, as Python prints it; may be empty
  std::string module_stack;  ///< of the model's modules, as torch.export writes it; may be empty
};

/// A size that depends on those of the inputs.
struct SymbolicSize {
  std::string expression;            ///< as sympy's srepr writes it
  std::optional<std::int64_t> hint;  ///< in the inputs that the program was exported with
};

using SavedSize = std::variant<std::int64_t, SymbolicSize>;

struct TensorMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<SavedSize> sizes;
  at::Device device = at::kCPU;
};

/// A graph, or a branch or body of control flow.
struct Graph {
  std::vector<Argument> inputs;  ///< values, or constants for inputs that were fixed
  std::vector<Argument> outputs;
  std::vector<Node> nodes;
  std::map<std::string, TensorMeta> tensors;      ///< of the inputs and outputs alone
  std::map<std::string, at::ScalarType> numbers;  ///< of the outputs alone, by name
};

enum class InputKind { user, parameter, buffer, constant, fixed };

struct InputSpec {
  InputKind kind;
  std::string name;    ///< in the graph
  std::string target;  ///< of parameters, buffers and constants: the name in the model
};

enum class OutputKind { user, buffer_mutation, parameter_mutation, input_mutation };

struct OutputSpec {
  OutputKind kind;
  std::string target;  ///< what a mutation writes to: a name in the model, or a user input
};

/// An inclusive range; a missing end is unlimited.
struct SavedRange {
  std::optional<std::int64_t> min, max;
};

/// A program as torch.export.save writes it (schema 8, torch/_export/serde/schema.py).
struct SavedProgram {
  Graph graph;
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
  std::map<std::string, SavedRange> ranges;  ///< by the name of a symbol
  std::vector<std::string> guards;           ///< Python expressions over the inputs
  std::string torch;                         ///< version that wrote it
};

/// Reads models/NAME.json. Throws std::runtime_error if it has another schema or is broken, or if
/// it holds something that only Python can run: a custom object, or a token.
SavedProgram parse_program(std::string_view json);

/// Returns where a node comes from, such as "net.py:12"; empty if the file does not record it.
std::string place_of(const Node& node);

}  // namespace exporter::program
