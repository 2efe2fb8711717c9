#include "tensor_file.h"

#include <ATen/core/Tensor.h>
#include <caffe2/serialize/inline_container.h>
#include <exporter/golden.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

#include "archive.h"
#include "guard.h"
#include "integrity.h"
#include "pickle.h"

namespace exporter {
namespace {

std::vector<at::Tensor> in_order(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  const auto items = value.isTuple() ? c10::ArrayRef<c10::IValue>(value.toTupleRef().elements())
                                     : value.toListRef();
  for (const c10::IValue& item : items) {
    TORCH_CHECK(item.isTensor(), "it holds ", item.tagKind(), " where a tensor should be");
    tensors.push_back(item.toTensor());
  }
  return tensors;
}

std::vector<at::Tensor> by_name(const c10::impl::GenericDict& dict, const Contract& contract,
                                const std::string& file) {
  NamedTensors named;
  for (const auto& item : dict) named.emplace(item.key().toStringRef(), item.value().toTensor());
  try {
    return contract.arrange(std::move(named));
  } catch (const Error& error) {
    throw Error(error.kind(), file + ": " + error.what());
  }
}

/// Puts the initial state where the inputs have none of it.
std::vector<at::Tensor> with_state(std::vector<at::Tensor> inputs, const Contract& contract) {
  const std::size_t own = contract.own_inputs();
  if (own == contract.inputs.size() || inputs.size() < own) return inputs;
  if (inputs.size() == own) inputs.resize(contract.inputs.size());
  const bool has_all = std::all_of(inputs.begin(), inputs.end(),
                                   [](const at::Tensor& input) { return input.defined(); });
  if (has_all || inputs.size() != contract.inputs.size()) return inputs;
  const auto initial = contract.initial_state(std::span(inputs).first(own));
  for (std::size_t i = 0; i < initial.size(); ++i) {
    if (!inputs[own + i].defined()) inputs[own + i] = initial[i];
  }
  return inputs;
}

/// On the CPU, with a storage of its own: a view would carry its whole storage along, and two views
/// would share it.
at::Tensor on_host(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  return host.is_same(tensor) ? host.clone() : host;
}

/// As torch::pickle_save, which however tags the dict with a type that weights_only refuses to
/// read.
void write_records(const std::string& path, const c10::IValue& value) {
  std::string pickle;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { pickle.append(data, size); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  const std::vector<at::Tensor>& tensors = pickler.tensorData();

  caffe2::serialize::PyTorchStreamWriter writer(path);
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  writer.writeRecord("byteorder", "little", 6);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& storage = tensors[i].storage();
    writer.writeRecord("data/" + std::to_string(i), storage.data(), storage.nbytes());
  }
  writer.writeEndOfFile();
}

/// Through a file beside it, so that a reader finds all of it or nothing.
void write_archive(const std::filesystem::path& path, const c10::IValue& value) {
  std::filesystem::path part = path;
  part += ".part";
  try {
    write_records(part.string(), value);
    std::filesystem::rename(part, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
}

using Records = std::map<const void*, std::size_t>;

/// torch takes shape, strides and the length of the data from the pickle, and looks no further.
void require_within(const at::Tensor& tensor, const Records& records) {
  TORCH_CHECK(tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu(),
              "it holds a tensor that is not a plain one");
  std::int64_t last = tensor.storage_offset();
  bool sound = last >= 0;
  bool empty = false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    const std::int64_t size = tensor.size(i);
    const std::int64_t stride = tensor.stride(i);
    std::int64_t step = 0;
    empty = empty || size == 0;
    sound = sound && size >= 0 && stride >= 0 &&
            !__builtin_mul_overflow(std::max<std::int64_t>(size - 1, 0), stride, &step) &&
            !__builtin_add_overflow(last, step, &last);
  }
  const auto record = records.find(tensor.storage().data());
  const std::size_t held = record == records.end() ? 0 : record->second;
  const auto items = static_cast<std::int64_t>(held / tensor.element_size());
  TORCH_CHECK(sound && tensor.storage().nbytes() <= held && (empty || last < items),
              "it holds a tensor that is larger than its data");
}

c10::IValue read_pickle(caffe2::serialize::PyTorchStreamReader& reader) {
  const std::string pickle = read_text(reader, "data.pkl");
  require_sound_pickle(pickle);
  std::string_view rest = pickle;
  Records records;
  torch::jit::Unpickler unpickler(
      [&](char* buffer, std::size_t count) {
        count = rest.copy(buffer, count);
        rest.remove_prefix(count);
        return count;
      },
      nullptr, nullptr,
      [&](const std::string& name) {
        auto [data, size] = reader.getRecord("data/" + name);
        records[data.get()] = size;
        return std::move(data);
      },
      at::Device(at::kCPU));
  unpickler.set_version(reader.version());
  c10::IValue value = unpickler.parse_ivalue();
  value.visit([&](const c10::IValue& item) {
    if (item.isTensor()) require_within(item.toTensor(), records);
    return false;
  });
  return value;
}

}  // namespace

c10::IValue read_tensor_file(const std::filesystem::path& path, bool is_recorded) {
  if (is_recorded) require_unaltered(path, ErrorKind::golden);
  const auto reader = open_archive(path, ErrorKind::golden);
  if (!is_recorded) require_members(path, ErrorKind::golden, *reader);
  return guarded(ErrorKind::golden, path.string() + " cannot be read", [&] {
    require_stored(*reader, std::filesystem::file_size(path));
    return read_pickle(*reader);
  });
}

std::vector<at::Tensor> read_inputs(const std::filesystem::path& path, const Contract& contract) {
  const c10::IValue value = read_tensor_file(path, /*is_recorded=*/false);
  return guarded(ErrorKind::golden, path.string() + " cannot be read as inputs", [&] {
    if (value.isGenericDict()) {
      return by_name(value.toGenericDict(), contract, path.string());
    }
    TORCH_CHECK(value.isTuple() || value.isList(), "it holds neither a dict nor a list of tensors");
    return with_state(in_order(value), contract);
  });
}

void write_outputs(const std::filesystem::path& path, const std::vector<at::Tensor>& outputs,
                   const Contract& contract) {
  if (outputs.size() != contract.outputs.size()) {
    throw Error(ErrorKind::contract, "the model gave " + std::to_string(outputs.size()) +
                                         " outputs, the contract has " +
                                         std::to_string(contract.outputs.size()));
  }
  guarded(ErrorKind::io, path.string() + " cannot be written", [&] {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      dict.insert(contract.outputs[i].name, on_host(outputs[i]));
    }
    write_archive(path, dict);
  });
}

}  // namespace exporter
