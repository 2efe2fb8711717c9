// The index of the weights is described in docs/formats.md.

#include "weights.h"

#include <caffe2/serialize/inline_container.h>
#include <exporter/contract.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string_view>

#include "archive.h"
#include "json_fields.h"

namespace exporter {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using torch::inductor::AOTIModelContainerRunner;

constexpr std::string_view kIndex = "_weights.json", kBlob = "_weights.blob";
constexpr std::uint64_t kAlignment = 64;  // of each constant

[[noreturn]] void broken(const std::string& name, const std::string& cause) {
  throw std::runtime_error("the index of the weights is broken: " + name + " " + cause);
}

/// Returns the handles of a model's constants by the tensors that they point to.
std::unordered_map<c10::TensorImpl*, AtenTensorHandle> handles_of(AOTIModelContainerRunner& model) {
  struct Members : AOTIModelContainerRunner {  // gives access to what is protected
    static std::unordered_map<std::string, AtenTensorHandle> constants(
        AOTIModelContainerRunner& model) {
      std::unordered_map<std::string, AtenTensorHandle> found;
      const auto extract = model.*(&Members::extract_constants_map_func_);
      if (extract != nullptr) {
        extract(model.*(&Members::container_handle_),
                reinterpret_cast<AOTInductorConstantMapHandle>(&found), /*use_inactive=*/false);
      }
      return found;
    }
  };
  std::unordered_map<c10::TensorImpl*, AtenTensorHandle> handles;
  for (const auto& [name, handle] : Members::constants(model)) {
    handles.emplace(reinterpret_cast<at::Tensor*>(handle)->unsafeGetTensorImpl(), handle);
  }
  return handles;
}

std::vector<std::int64_t> sizes(const json& node, const std::string& what) {
  std::vector<std::int64_t> found;
  for (const json& size : node) {
    found.push_back(whole(size, what));
    if (found.back() < 0) broken(what, "is negative");
  }
  return found;
}

/// A constant as described in the index.
struct Constant {
  explicit Constant(const json& node)
      : name(node.at("name").get<std::string>()),
        dtype(dtype_of(node.at("dtype").get<std::string>(), name)),
        shape(sizes(node.at("shape"), name)),
        stride(sizes(node.at("stride"), name)),
        start(whole(node.at("start"), name)),
        offset(whole(node.at("offset"), name)),
        bytes(whole(node.at("bytes"), name)) {
    if (const auto found = node.find("packed"); found != node.end()) {
      found->get_to(packed);
      if (packed.empty()) broken(name, "has an empty layout");
    }
  }

  /// Throws unless the constant is in a blob of this size.
  void require_within(std::uint64_t blob) const {
    if (shape.size() != stride.size()) broken(name, "has not as many strides as sizes");
    if (offset < 0 || bytes < 0 || start < 0 || offset % kAlignment != 0 ||
        static_cast<std::uint64_t>(offset) > blob ||
        static_cast<std::uint64_t>(bytes) > blob - static_cast<std::uint64_t>(offset)) {
      broken(name, "is not in the file");
    }
    if (!packed.empty()) return;
    const std::int64_t item = static_cast<std::int64_t>(c10::elementSize(dtype));
    std::int64_t last = start;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      std::int64_t step = 0;
      if (shape[i] == 0) return;
      if (__builtin_mul_overflow(shape[i] - 1, stride[i], &step) ||
          __builtin_add_overflow(last, step, &last)) {
        broken(name, "is too large");
      }
    }
    if (last >= bytes / item) broken(name, "is larger than its bytes");
  }

  at::Tensor at(char* blob) const {
    const auto layout = packed.empty() ? aoti_torch_layout_strided() : aoti_torch_layout__mkldnn();
    AtenTensorHandle handle = nullptr;
    const auto failed = aoti_torch_create_tensor_from_blob_v2(
        blob + offset, static_cast<std::int64_t>(shape.size()), shape.data(), stride.data(), start,
        static_cast<std::int32_t>(dtype), aoti_torch_device_type_cpu(), 0, &handle, layout,
        packed.data(), static_cast<std::int64_t>(packed.size()));
    if (failed != AOTI_TORCH_SUCCESS) broken(name, "is not a tensor");
    return torch::aot_inductor::alloc_tensors_by_stealing_from_handles(&handle, 1).front();
  }

  static at::ScalarType dtype_of(const std::string& dtype, const std::string& name) {
    const auto found = dtype_from_name(dtype);
    if (!found) broken(name, "has the unknown dtype " + dtype);
    return *found;
  }

  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape, stride;
  std::int64_t start;  // of the first element, in elements
  std::int64_t offset, bytes;
  std::vector<std::uint8_t> packed;  // oneDNN's layout
};

const Member* find_member(const std::vector<Member>& members, const std::string& folder,
                          std::string_view end) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const Member& member) {
    const std::string_view name = std::string_view(member.name).substr(member.name.find('/') + 1);
    return name.starts_with(folder) && name.ends_with(end);
  });
  return found == members.end() ? nullptr : &*found;
}

}  // namespace

/// Bytes of a file, mapped or in memory: if they are not aligned, if huge pages are wanted, or if
/// the file system cannot map.
class Weights::Region {
 public:
  Region(const fs::path& path, std::uint64_t offset, std::uint64_t size, bool huge_pages) {
    if (offset % kAlignment == 0 && !huge_pages) map(path, offset, size);
    if (start_ == MAP_FAILED) read(path, offset, size, huge_pages);
  }
  ~Region() { munmap(start_, length_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  char* data() const { return data_; }

 private:
  void map(const fs::path& path, std::uint64_t offset, std::uint64_t size) {
    const std::uint64_t before = offset % static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    length_ = size + before;
    start_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file,
                  static_cast<off_t>(offset - before));
    close(file);
    data_ = static_cast<char*>(start_) + before;
  }

  void read(const fs::path& path, std::uint64_t offset, std::uint64_t size, bool huge_pages) {
    length_ = size;
    start_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<char*>(start_);
    if (huge_pages) madvise(start_, length_, MADV_HUGEPAGE);  // has no effect on systems without
    try {
      File(path).read(data_, size, offset);
    } catch (...) {
      munmap(start_, length_);
      throw;
    }
  }

  void* start_ = MAP_FAILED;
  std::size_t length_ = 0;
  char* data_ = nullptr;
};

bool is_mapped(const Member& member, const std::vector<Member>& members) {
  if (!member.name.ends_with(kBlob) || member.compressed) return false;
  const std::string index =
      member.name.substr(0, member.name.size() - kBlob.size()) + std::string(kIndex);
  return std::ranges::find(members, index, &Member::name) != members.end();
}

std::unique_ptr<Weights> Weights::map(const fs::path& package, const std::string& model,
                                      bool huge_pages, Regions& regions) {
  const auto members = read_directory(File(package));
  const auto member_of = [&](const std::string& of, std::string_view end) {
    return find_member(members, "data/aotinductor/" + of + "/", end);
  };
  const Member* index = member_of(model, kIndex);
  const Member* own = member_of(model, kBlob);
  if (index == nullptr || (own != nullptr && !is_mapped(*own, members))) return nullptr;
  const auto reader = open_archive(package, ErrorKind::artifact);
  const auto text = read_text(*reader, index->name.substr(index->name.find('/') + 1));
  std::unique_ptr<Weights> weights(new Weights);
  const json described = parse_json(text);
  for (const json& node : described.at("constants")) {
    const Constant constant(node);
    const Member* blob = member_of(node.value("in", model), kBlob);
    if (blob == nullptr || !is_mapped(*blob, members)) broken(constant.name, "has no blob");
    constant.require_within(blob->size);
    auto& region = regions[blob->name];
    if (!region && blob->size > 0) {
      region = std::make_shared<Region>(package, blob->offset, blob->size, huge_pages);
    }
    weights->regions_.push_back(region);
    weights->tensors_.emplace(constant.name, constant.at(region ? region->data() : nullptr));
  }
  return weights;
}

void Weights::give_to(AOTIModelContainerRunner& model) {
  for (const auto& [name, ignored] : model.getConstantNamesToOriginalFQNs()) {
    if (!tensors_.contains(name)) broken(name, "is missing");
  }
  if (tensors_.empty()) return;
  model.update_constant_buffer(tensors_, /*use_inactive=*/false, /*validate_full_updates=*/true,
                               /*user_managed=*/true);
  const auto handles = handles_of(model);
  for (const auto& [ignored, tensor] : tensors_) {
    const auto found = handles.find(tensor.unsafeGetTensorImpl());
    if (found != handles.end()) given_.emplace_back(tensor, found->second);
  }
  tensors_.clear();
}

Weights::~Weights() {
  // Torch 2.14 never frees its handles of tensors that the caller manages.
  for (const auto& [tensor, handle] : given_) {
    if (tensor.use_count() > 1) aoti_torch_delete_tensor_object(handle);
  }
}

}  // namespace exporter
