#include "signature.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "../expression.h"
#include "program.h"
#include "saved_size.h"

namespace exporter::program {
namespace {

/// torch.export records a minimum of 2 where it assumed nothing, and its own check accepts less.
constexpr std::int64_t kAssumedMin = 2;

/// Narrows a symbol to the sizes for which `size` of it alone, such as 2*s + 1, is in the range.
void narrow(Symbol& symbol, const LinearSize& size, const SavedRange& range) {
  // In 128 bits, because a file may hold any number.
  using Wide = __int128;
  using Limits = std::numeric_limits<std::int64_t>;
  const Wide factor = size.factors.begin()->second, offset = size.offset;
  const auto floored = [&](Wide bound) {
    const Wide rest = bound - offset;
    return rest / factor - (rest % factor < 0 ? 1 : 0);
  };
  if (range.min && *range.min > kAssumedMin) {
    const Wide least = std::max<Wide>(floored(Wide{*range.min} - 1) + 1, symbol.min);
    symbol.min = static_cast<std::int64_t>(std::min<Wide>(least, Limits::max()));
  }
  if (range.max) {
    const Wide most = std::min<Wide>(floored(*range.max), symbol.max);
    symbol.max = static_cast<std::int64_t>(std::max<Wide>(most, Limits::min()));
  }
}

std::size_t symbol_index(Contract& contract, const std::string& name, const SavedProgram& program) {
  const auto known = std::ranges::find(contract.symbols, name, &Symbol::name);
  if (known != contract.symbols.end()) {
    return static_cast<std::size_t>(known - contract.symbols.begin());
  }
  Symbol symbol{name, 0, std::numeric_limits<std::int64_t>::max()};
  if (const auto range = program.ranges.find(name); range != program.ranges.end()) {
    symbol.min = range->second.min.value_or(0);
    if (symbol.min == kAssumedMin) symbol.min = 0;
    symbol.max = range->second.max.value_or(symbol.max);
  }
  for (const auto& [text, range] : program.ranges) {
    const auto size = read_printed_size(text);
    const bool is_derived = size && size->factors.begin()->first == name &&
                            size->factors.begin()->second >= 1 && text != name;
    if (is_derived) narrow(symbol, *size, range);
  }
  contract.symbols.push_back(symbol);
  return contract.symbols.size() - 1;
}

/// Sets the hint of a symbol if the hint of a size of it alone determines it.
void set_hint(Symbol& symbol, const LinearSize& size, std::optional<std::int64_t> hint) {
  std::int64_t rest = 0;
  if (symbol.hint || !hint || size.divisor != 1) return;
  const std::int64_t factor = size.factors.begin()->second;
  if (__builtin_sub_overflow(*hint, size.offset, &rest) || rest % factor != 0) return;
  symbol.hint = rest / factor;
}

/// Returns a dimension. Only inputs introduce symbols, because a size of an output that no input
/// has cannot be checked.
Dimension dimension_of(const SavedSize& saved, Contract& contract, const SavedProgram& program,
                       bool is_input) {
  if (const auto* size = std::get_if<std::int64_t>(&saved)) return FixedSize{*size};
  const auto& symbolic = std::get<SymbolicSize>(saved);
  const auto linear = read_size(symbolic.expression);
  if (!linear || linear->factors.empty()) return AnySize{};
  Expression made{.offset = linear->offset, .divisor = linear->divisor};
  for (const auto& [name, factor] : linear->factors) {
    const bool known =
        std::ranges::find(contract.symbols, name, &Symbol::name) != contract.symbols.end();
    if (factor < 1 || (!is_input && !known)) return AnySize{};
  }
  for (const auto& [name, factor] : linear->factors) {
    made.others.push_back({symbol_index(contract, name, program), factor});
  }
  made.symbol = made.others.front().symbol;
  made.factor = made.others.front().factor;
  made.others.erase(made.others.begin());
  const bool alone = made.others.empty();
  if (is_input && alone) set_hint(contract.symbols[made.symbol], *linear, symbolic.hint);
  if (is_symbol(made)) return SymbolSize{made.symbol};
  return made;
}

TensorSpec spec_of(std::string name, const TensorMeta& meta, Contract& contract,
                   const SavedProgram& program, bool is_input) {
  TensorSpec spec{std::move(name), meta.dtype, {}};
  for (const SavedSize& size : meta.sizes) {
    spec.shape.push_back(dimension_of(size, contract, program, is_input));
  }
  return spec;
}

void add_inputs(Contract& contract, const SavedProgram& program) {
  for (const InputSpec& input : program.inputs) {
    if (input.kind != InputKind::user) continue;
    const auto meta = program.graph.tensors.find(input.name);
    if (meta == program.graph.tensors.end()) {
      throw std::runtime_error("its input " + input.name + " has no description");
    }
    contract.inputs.push_back(spec_of(input.name, meta->second, contract, program, true));
    if (contract.inputs.size() == 1)
      contract.device = meta->second.device.is_cuda() ? "cuda" : "cpu";
  }
}

/// Returns the dtype of an output that is a number, which becomes a tensor without dimensions.
at::ScalarType number_dtype(const Argument& output, const Graph& graph) {
  if (const auto* constant = std::get_if<c10::IValue>(&output.is)) {
    if (constant->isInt()) return at::kLong;
    if (constant->isBool()) return at::kBool;
  } else if (const auto* value = std::get_if<Reference>(&output.is)) {
    const auto found = graph.numbers.find(value->name);
    if (found != graph.numbers.end()) return found->second;
  }
  return at::kDouble;
}

void add_outputs(Contract& contract, const SavedProgram& program) {
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    if (program.outputs[i].kind != OutputKind::user) continue;
    const Argument& output = program.graph.outputs[i];
    if (const auto* none = std::get_if<c10::IValue>(&output.is); none && none->isNone()) continue;
    const std::string name = "output_" + std::to_string(contract.outputs.size());
    const auto* value = std::get_if<Reference>(&output.is);
    const auto meta =
        value == nullptr ? program.graph.tensors.end() : program.graph.tensors.find(value->name);
    contract.outputs.push_back(meta == program.graph.tensors.end()
                                   ? TensorSpec{name, number_dtype(output, program.graph), {}}
                                   : spec_of(name, meta->second, contract, program, false));
  }
}

void add_state(Contract& contract, const SavedProgram& program, const SavedTensors& tensors) {
  State state{State::Kept::inside, {}};
  for (const std::string& target : written_weights(program)) {
    const auto found = tensors.find(target);
    if (found == tensors.end()) throw std::runtime_error("it has no tensor " + target);
    const at::Tensor& tensor = found->second.tensor;
    TensorSpec spec{target, tensor.scalar_type(), {}};
    for (const std::int64_t size : tensor.sizes()) spec.shape.emplace_back(FixedSize{size});
    state.tensors.push_back({std::move(spec), tensor});
  }
  if (!state.tensors.empty()) contract.state = std::move(state);
}

}  // namespace

Contract contract_of(const SavedProgram& program, const SavedTensors& tensors) {
  Contract contract;
  contract.model = "exported program";
  contract.target = "export";
  contract.device = "cpu";
  contract.torch = program.torch;
  add_inputs(contract, program);
  add_outputs(contract, program);
  add_state(contract, program, tensors);
  return contract;
}

}  // namespace exporter::program
