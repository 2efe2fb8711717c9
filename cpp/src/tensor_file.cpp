#include "tensor_file.h"

#include <caffe2/serialize/inline_container.h>
#include <exporter/golden.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>

#include "archive.h"
#include "guard.h"

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
  std::vector<at::Tensor> tensors;
  for (const TensorSpec& spec : contract.inputs) {
    const auto found = dict.find(spec.name);
    if (found == dict.end()) {
      throw Error(ErrorKind::contract, file + ": input " + spec.name + " is missing");
    }
    tensors.push_back(found->value().toTensor());
  }
  if (dict.size() != tensors.size()) {
    throw Error(ErrorKind::contract, file + ": " + std::to_string(dict.size()) +
                                         " inputs given, the contract has " +
                                         std::to_string(tensors.size()));
  }
  return tensors;
}

void write_bytes(const std::filesystem::path& path, const std::vector<char>& bytes) {
  std::filesystem::path part = path;
  part += ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    const std::string cause = std::strerror(errno);
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw Error(ErrorKind::golden, path.string() + " cannot be written: " + cause);
  }
  std::filesystem::rename(part, path);
}

}  // namespace

c10::IValue read_tensor_file(const std::filesystem::path& path) {
  const auto reader = open_archive(path, ErrorKind::golden);
  return guarded(ErrorKind::golden, path.string() + " cannot be read", [&] {
    return torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt,
                                             at::Device(at::kCPU), *reader);
  });
}

std::vector<at::Tensor> read_inputs(const std::filesystem::path& path, const Contract& contract) {
  const c10::IValue value = read_tensor_file(path);
  return guarded(ErrorKind::golden, path.string() + " cannot be read as inputs", [&] {
    if (value.isGenericDict()) return by_name(value.toGenericDict(), contract, path.string());
    TORCH_CHECK(value.isTuple() || value.isList(), "it holds neither a dict nor a list of tensors");
    return in_order(value);
  });
}

void write_outputs(const std::filesystem::path& path, const std::vector<at::Tensor>& outputs,
                   const Contract& contract) {
  if (outputs.size() != contract.outputs.size()) {
    throw Error(ErrorKind::contract, "the model gave " + std::to_string(outputs.size()) +
                                         " outputs, the contract has " +
                                         std::to_string(contract.outputs.size()));
  }
  guarded(ErrorKind::golden, path.string() + " cannot be written", [&] {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      dict.insert(contract.outputs[i].name, outputs[i].cpu().contiguous());
    }
    write_bytes(path, torch::jit::pickle_save(dict));
  });
}

}  // namespace exporter
