// The pickle of a golden, in an archive that is whole.

#include <caffe2/serialize/inline_container.h>
#include <exporter/error.h>
#include <exporter/golden.h>

#include <string>
#include <vector>

#include "memory_file.h"

namespace {

constexpr int kStorages = 32;

/// What torch.save writes, with this pickle and storages of a few bytes.
std::string archive(const void* pickle, std::size_t size) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t count) {
    bytes.append(static_cast<const char*>(data), count);
    return count;
  });
  writer.writeRecord("data.pkl", pickle, size);
  writer.writeRecord("byteorder", "little", 6);
  const std::string storage(256, '\1');
  for (int i = 0; i < kStorages; ++i) {
    writer.writeRecord("data/" + std::to_string(i), storage.data(), storage.size());
  }
  writer.writeEndOfFile();
  return bytes;
}

void use(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.clone();
}

void use(const exporter::Golden& golden) {
  for (const exporter::GoldenCase& one : golden.cases) {
    use(one.inputs);
    use(one.eager);
    use(one.reference);
    if (one.step && *one.step < 0) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static MemoryFile file;
  const std::string bytes = archive(data, size);
  file.assign(bytes.data(), bytes.size());
  for (const char* precision : {"fp32", "bf16"}) {
    try {
      use(exporter::Golden::read(file.path(), precision));
    } catch (const exporter::Error&) {
    }
  }
  return 0;
}
