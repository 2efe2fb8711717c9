// Reads the state of a contract. Its initial values are numbers or base64.

#include "state_json.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <exporter/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "json_fields.h"

namespace exporter {
namespace {

using nlohmann::json;

[[noreturn]] void malformed(const TensorSpec& spec, const std::string& cause) {
  throw Error(ErrorKind::artifact, "state " + spec.name + ": " + cause);
}

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Decodes base64 with padding (RFC 4648, section 4). Returns nothing for any other text.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto value = kAlphabet.find(c);
    if (value == kAlphabet.npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return bytes;
}

/// Returns a tensor without dimensions.
at::Tensor read_number(const json& node, const TensorSpec& spec) {
  const double value = node.get<double>();
  const bool whole = value == std::floor(value);
  if (spec.dtype == at::kBool && value != 0 && value != 1) {
    malformed(spec, "its initial value is neither 0 nor 1");
  }
  if (at::isIntegralType(spec.dtype, /*includeBool=*/false) && !whole) {
    malformed(spec, "its initial value is not whole");
  }
  c10::Scalar scalar(value);
  if (node.is_number_unsigned()) {
    scalar = c10::Scalar(node.get<std::uint64_t>());
  } else if (node.is_number_integer()) {
    scalar = c10::Scalar(node.get<std::int64_t>());
  }
  return at::full({}, scalar, spec.dtype);
}

/// Returns the number of elements of a shape, or nothing if a size is negative or the number
/// overflows.
std::optional<std::size_t> count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return static_cast<std::size_t>(count);
}

at::Tensor read_data(const json& node, const TensorSpec& spec) {
  require_fields(node, "initial", {"shape", "data"});
  std::vector<std::int64_t> shape;
  for (const json& size : node.at("shape").get<std::vector<json>>()) {
    shape.push_back(whole(size, "its initial shape"));
  }
  const auto bytes = decode_base64(node.at("data").get_ref<const std::string&>());
  if (!bytes) malformed(spec, "its initial data is not base64");
  const auto count = count_of(shape);
  const std::size_t size = c10::elementSize(spec.dtype);
  if (!count || bytes->size() % size != 0 || bytes->size() / size != *count) {
    malformed(spec, "its initial data does not fill its shape");
  }
  if (spec.dtype == at::kBool &&
      std::any_of(bytes->begin(), bytes->end(), [](char byte) { return byte != 0 && byte != 1; })) {
    malformed(spec, "its initial data is not of 0 and 1");
  }
  at::Tensor tensor = at::empty(shape, spec.dtype);
  if (!bytes->empty()) std::memcpy(tensor.mutable_data_ptr(), bytes->data(), bytes->size());
  return tensor;
}

/// Throws unless the tensor broadcasts to the shape for every size of its symbols.
void require_broadcast(const at::Tensor& initial, const TensorSpec& spec) {
  const std::size_t rank = spec.shape.size();
  const auto given = static_cast<std::size_t>(initial.dim());
  bool fits = given <= rank;
  for (std::size_t i = 0; fits && i < rank; ++i) {
    const auto* fixed = std::get_if<FixedSize>(&spec.shape[i]);
    const bool open = std::holds_alternative<AnySize>(spec.shape[i]);
    if (fixed != nullptr && fixed->size < 0) malformed(spec, "its shape has a negative size");
    if (i < rank - given) {
      if (open) malformed(spec, "a dimension without a fixed size has no initial size");
      continue;
    }
    const std::int64_t size = initial.size(static_cast<std::int64_t>(i - (rank - given)));
    fits = open || size == 1 || (fixed != nullptr && size == fixed->size);
  }
  if (!fits) malformed(spec, "its initial shape does not fit its shape");
}

/// Throws unless the last specs are the state's. `what` is "input" or "output".
void require_last(const std::vector<TensorSpec>& specs, const std::vector<State::Tensor>& tensors,
                  const char* what) {
  const auto fail = [&](const std::string& cause) { throw Error(ErrorKind::artifact, cause); };
  if (specs.size() < tensors.size())
    fail(std::string("the state has more tensors than ") + what + "s");
  const std::size_t own = specs.size() - tensors.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& spec = specs[own + i];
    const TensorSpec& wanted = tensors[i].spec;
    if (spec.name != "state." + wanted.name) {
      fail("expected " + std::string(what) + " state." + wanted.name + ", found " + spec.name);
    }
    if (spec.dtype != wanted.dtype || spec.shape.size() != wanted.shape.size()) {
      fail(std::string(what) + " " + spec.name + " differs from its state in dtype or rank");
    }
  }
}

}  // namespace

State read_state(const json& node, std::vector<TensorSpec> specs) {
  State state{};
  const auto kept = node.at("kept").get<std::string>();
  if (kept != "inside" && kept != "outside") {
    throw Error(ErrorKind::artifact, "state kept " + kept + " is neither inside nor outside");
  }
  state.kept = kept == "inside" ? State::Kept::inside : State::Kept::outside;
  if (specs.empty()) throw Error(ErrorKind::artifact, "the state has no tensors");
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    if (!names.insert(spec.name).second) malformed(spec, "the name is used twice");
    const json& initial = node.at("tensors").at(i).at("initial");
    at::Tensor tensor = initial.is_number() ? read_number(initial, spec) : read_data(initial, spec);
    require_broadcast(tensor, spec);
    state.tensors.push_back({spec, std::move(tensor)});
  }
  return state;
}

void require_places(const Contract& contract) {
  if (!contract.state || contract.keeps_state()) return;
  require_last(contract.inputs, contract.state->tensors, "input");
  require_last(contract.outputs, contract.state->tensors, "output");
  for (std::size_t i = 0; i < contract.state->tensors.size(); ++i) {
    const TensorSpec& spec = contract.inputs[contract.own_inputs() + i];
    if (spec.shape != contract.state->tensors[i].spec.shape) {
      throw Error(ErrorKind::artifact, "input " + spec.name + " differs from its state in shape");
    }
  }
}

}  // namespace exporter
