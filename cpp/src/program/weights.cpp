#include "weights.h"

#include <ATen/Functions.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "../json_fields.h"
#include "codes.h"
#include "device_json.h"

namespace exporter::program {

/// A file in memory. Writes are private to this process.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category());
    size_ = std::filesystem::file_size(path);
    data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    const int failed = errno;
    close(file);
    if (data_ == MAP_FAILED) throw std::system_error(failed, std::generic_category());
  }
  ~Mapping() { munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* at(std::uint64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  void* data_;
  std::size_t size_;
};

namespace {

using nlohmann::json;

/// Returns the sizes, strides or offset of a payload, which never vary.
std::int64_t number(const json& node) {
  const std::int64_t value = node.at("as_int").get<std::int64_t>();
  if (value < 0) throw std::runtime_error("a size is negative");
  return value;
}

std::vector<std::int64_t> numbers(const json& nodes) {
  std::vector<std::int64_t> values;
  for (const json& node : nodes) values.push_back(number(node));
  return values;
}

struct Strided {
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset;

  bool is_empty() const { return std::ranges::find(sizes, 0) != sizes.end(); }

  /// Returns the number of elements up to the end of the last one. Throws if it does not fit.
  std::uint64_t extent() const {
    __int128 last = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      last += static_cast<__int128>(sizes[i] - 1) * strides[i];
      if (last >> 62 != 0) throw std::runtime_error("a tensor is too large");
    }
    return static_cast<std::uint64_t>(last) + 1;
  }
};

Strided layout_of(const json& meta) {
  Strided made{numbers(meta.at("sizes")), numbers(meta.at("strides")),
               number(meta.at("storage_offset"))};
  if (made.sizes.size() != made.strides.size()) throw std::runtime_error("a stride is missing");
  if (layout_of_code(meta.at("layout").get<std::int64_t>()) != c10::Layout::Strided) {
    throw std::runtime_error("it is sparse");
  }
  return made;
}

at::Tensor read_tensor(const json& meta, const Member& member,
                       const std::shared_ptr<const Mapping>& mapping) {
  const Strided layout = layout_of(meta);
  const auto dtype = dtype_of_code(meta.at("dtype").get<std::int64_t>());
  const auto options = at::TensorOptions().dtype(dtype);
  if (layout.is_empty()) return at::empty_strided(layout.sizes, layout.strides, options);
  const std::uint64_t width = c10::elementSize(dtype);
  if (member.compressed) throw std::runtime_error("it is compressed");
  if (layout.extent() > member.size / width) throw std::runtime_error("it ends before its tensor");
  char* const data = mapping->at(member.offset + layout.offset * width);
  at::Tensor mapped =
      at::from_blob(data, layout.sizes, layout.strides, [mapping](void*) {}, options);
  // torch's kernels expect aligned elements. Archives that torch writes have them.
  return member.offset % width == 0 ? mapped : mapped.clone();
}

}  // namespace

SavedFile::SavedFile(const std::filesystem::path& path) {
  constexpr std::string_view kModels = "models/", kJson = ".json";
  std::string names;  // of further programs
  for (Member& member : read_directory(File(path))) {
    const auto top = member.name.find('/');
    std::string name = top == std::string::npos ? member.name : member.name.substr(top + 1);
    if (name.starts_with(kModels) && name.ends_with(kJson)) {
      const auto length = name.size() - kModels.size() - kJson.size();
      if (!model_.empty()) names += model_ + ", ";
      model_ = name.substr(kModels.size(), length);
    }
    members_.insert_or_assign(std::move(name), std::move(member));
  }
  if (model_.empty()) throw std::runtime_error("it holds no exported program");
  if (!names.empty()) {
    throw std::runtime_error("it holds several programs (" + names + model_ +
                             "): save each in a file of its own with torch.export.save");
  }
  mapping_ = std::make_shared<const Mapping>(path);
  if (const auto order = find("byteorder"); order && *order != "little") {
    throw std::runtime_error("its bytes are in the order " + std::string(*order));
  }
}

std::optional<std::string_view> SavedFile::find(const std::string& name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) return std::nullopt;
  if (found->second.compressed) throw std::runtime_error(name + " is compressed");
  return std::string_view(mapping_->at(found->second.offset), found->second.size);
}

std::string_view SavedFile::require(const std::string& name) const {
  if (const auto found = find(name)) return *found;
  throw std::runtime_error("it has no member " + name + ": torch 2.11 or later must save it");
}

std::string_view SavedFile::graph() const { return require("models/" + model_ + ".json"); }

std::optional<std::string_view> SavedFile::contract() const { return find("extra/contract.json"); }

SavedTensors SavedFile::tensors() const {
  SavedTensors tensors;
  read_tensors("data/weights/" + model_ + "_weights_config.json", "data/weights/", tensors);
  read_tensors("data/constants/" + model_ + "_constants_config.json", "data/constants/", tensors);
  return tensors;
}

void SavedFile::read_tensors(const std::string& config, const std::string& folder,
                             SavedTensors& tensors) const {
  const json root = parse_json(require(config));
  for (const auto& [name, payload] : root.at("config").items()) {
    try {
      if (payload.at("use_pickle").get<bool>()) {
        throw std::runtime_error("it is a Python object, which needs Python");
      }
      const auto member = members_.find(folder + payload.at("path_name").get<std::string>());
      if (member == members_.end()) throw std::runtime_error("its data is missing");
      const json& meta = payload.at("tensor_meta");
      tensors.insert_or_assign(name, SavedTensor{read_tensor(meta, member->second, mapping_),
                                                 device_of(meta.at("device"))});
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(name + " cannot be read: " + error.what());
    }
  }
}

}  // namespace exporter::program
