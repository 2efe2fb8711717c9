// Format: https://github.com/huggingface/safetensors#format. The header's length in 8 little-endian
// bytes, the header as JSON, the data.

#include "safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "file.h"
#include "form.h"
#include "json_fields.h"

namespace exporter {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;                      // from one symbolic link to the next
constexpr std::uint64_t kMaxHeader = 100'000'000;  // as in the format's own reader
constexpr int kMaxDepth = 8;                       // of the header, where the format has 3 levels
constexpr std::size_t kAlignment = 8;              // of the data in the file
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kAbout = "exporter";

struct Named {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr Named kDtypes[] = {
    {"BOOL", at::ScalarType::Bool},
    {"U8", at::ScalarType::Byte},
    {"I8", at::ScalarType::Char},
    {"I16", at::ScalarType::Short},
    {"I32", at::ScalarType::Int},
    {"I64", at::ScalarType::Long},
    {"U16", at::ScalarType::UInt16},
    {"U32", at::ScalarType::UInt32},
    {"U64", at::ScalarType::UInt64},
    {"F16", at::ScalarType::Half},
    {"BF16", at::ScalarType::BFloat16},
    {"F32", at::ScalarType::Float},
    {"F64", at::ScalarType::Double},
    {"C64", at::ScalarType::ComplexFloat},
    {"F8_E4M3", at::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", at::ScalarType::Float8_e5m2},
};

[[noreturn]] void broken(const std::string& cause) { throw std::runtime_error(cause); }

at::ScalarType dtype_of(const std::string& name) {
  const auto* found = std::ranges::find(kDtypes, name, &Named::name);
  if (found == std::end(kDtypes)) broken("unknown dtype " + name);
  return found->dtype;
}

std::string name_of(at::ScalarType dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &Named::dtype);
  if (found == std::end(kDtypes)) broken("safetensors has no dtype " + dtype_name(dtype));
  return std::string(found->name);
}

/// Returns whether the dtype is stored as pairs of real numbers, because the format lacks it.
bool is_pairs(at::ScalarType dtype) {
  return dtype == at::kComplexDouble || dtype == at::kComplexHalf;
}

/// Refuses a duplicate name in one object. The JSON library would silently use the last one.
class Names {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) broken("its header is nested too deeply");
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key &&
        !open_.back().insert(parsed.get<std::string>()).second) {
      broken("its header contains " + parsed.dump() + " twice");
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> open_;
};

json read_header(const File& file, std::uint64_t& data) {
  if (file.size() < sizeof(std::uint64_t)) broken("it is too short");
  std::array<unsigned char, sizeof(std::uint64_t)> bytes{};
  file.read(bytes.data(), bytes.size(), 0);
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) length = length << 8 | bytes[i];
  if (length > kMaxHeader || length > file.size() - bytes.size()) {
    broken("its header is longer than the file, or than " + std::to_string(kMaxHeader) + " bytes");
  }
  std::string text(length, '\0');
  file.read(text.data(), text.size(), bytes.size());
  if (!text.starts_with('{')) broken("its header is not a JSON object");
  data = bytes.size() + length;
  Names names;
  json header = json::parse(text, std::ref(names), /*allow_exceptions=*/true);
  if (!header.is_object()) broken("its header is not a JSON object");
  return header;
}

std::uint64_t number(const json& node, const std::string& what) {
  if (!node.is_number_unsigned()) broken(what + " has " + node.dump() + " in place of a size");
  return node.get<std::uint64_t>();
}

/// The position of a tensor in the data.
struct Place {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;
  std::uint64_t end;
};

Place read_place(const std::string& name, const json& node) {
  if (!node.is_object() || node.size() != 3) {
    broken(name + " must have exactly dtype, shape and data_offsets");
  }
  const json& offsets = node.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) broken(name + " must have two data_offsets");
  Place place{name,
              dtype_of(node.at("dtype").get<std::string>()),
              {},
              number(offsets[0], name),
              number(offsets[1], name)};
  std::uint64_t bytes = c10::elementSize(place.dtype);
  bool fits = place.begin <= place.end;
  if (!node.at("shape").is_array()) broken(name + " has no shape");
  for (const json& item : node.at("shape")) {
    const std::uint64_t size = number(item, name);
    fits = fits && size <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) &&
           !__builtin_mul_overflow(bytes, size, &bytes);
    place.shape.push_back(static_cast<std::int64_t>(size));
  }
  if (!fits || bytes != place.end - place.begin) {
    broken(name + " has a number of bytes that does not fit its shape");
  }
  return place;
}

std::vector<Place> read_places(const json& header, std::uint64_t size) {
  std::vector<Place> places;
  for (const auto& [name, node] : header.items()) {
    if (name != kMetadata) places.push_back(read_place(name, node));
  }
  std::ranges::sort(places, {},
                    [](const Place& place) { return std::pair(place.begin, place.end); });
  std::uint64_t end = 0;
  for (const Place& place : places) {
    if (place.begin != end) broken(place.name + " does not start where the previous tensor ends");
    end = place.end;
  }
  if (end != size) {
    broken("its tensors have " + std::to_string(end) + " bytes, but the file has " +
           std::to_string(size));
  }
  return places;
}

json read_about(const json& header) {
  const auto metadata = header.find(kMetadata);
  if (metadata == header.end()) return json::object();
  if (!metadata->is_object()) broken("its metadata is not an object");
  for (const auto& [name, value] : metadata->items()) {
    if (!value.is_string()) broken(name + " in its metadata is not a string");
  }
  const auto found = metadata->find(kAbout);
  if (found == metadata->end()) return json::object();
  json about = parse_json(found->get<std::string>());
  if (!about.is_object()) broken("`exporter` in its metadata is not an object");
  return about;
}

at::Tensor read_tensor(const File& file, const Place& place, std::uint64_t data) {
  at::Tensor tensor = at::empty(place.shape, place.dtype);
  file.read(tensor.mutable_data_ptr(), place.end - place.begin, data + place.begin);
  if (place.dtype != at::kBool) return tensor;
  const std::span values(static_cast<const unsigned char*>(tensor.const_data_ptr()),
                         place.end - place.begin);
  if (std::ranges::any_of(values, [](unsigned char value) { return value > 1; })) {
    broken(place.name + " has a bool that is neither 0 nor 1");
  }
  return tensor;
}

void join_pairs(SafeTensors& file) {
  const auto names = file.about.find("complex");
  if (names == file.about.end()) return;
  if (!names->is_array()) broken("`complex` is not a list");
  for (const json& name : *names) {
    const auto found = file.tensors.find(name.get<std::string>());
    if (found == file.tensors.end())
      broken("`complex` names " + name.dump() + ", but there is no such tensor");
    found->second = at::view_as_complex(found->second);
  }
}

/// Returns the tensor as it is stored: contiguous on the CPU, with resolved bits and a dtype that
/// the format has.
at::Tensor stored(const std::string& name, const at::Tensor& tensor) {
  if (const std::string form = unusual_form(tensor); !form.empty()) {
    throw std::runtime_error(name + " is " + form +
                             ", which a safetensors file cannot hold: make it dense in the model");
  }
  const at::Tensor plain = tensor.cpu().resolve_conj().resolve_neg().contiguous();
  return is_pairs(plain.scalar_type()) ? at::view_as_real(plain) : plain;
}

std::string make_header(const NamedTensors& tensors, const json& pairs) {
  json header = json::object();
  if (!pairs.empty()) header[kMetadata] = {{kAbout, json{{"complex", pairs}}.dump()}};
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata) broken("a tensor cannot be named " + name);
    const std::uint64_t end = at + tensor.nbytes();
    header[name] = {{"dtype", name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

[[noreturn]] void fail_with_system_error() {
  throw std::system_error(errno != 0 ? errno : EIO, std::generic_category());
}

void write_file(const fs::path& path, const NamedTensors& tensors) {
  NamedTensors all;
  json pairs = json::array();
  for (const auto& [name, tensor] : tensors) {
    if (is_pairs(tensor.scalar_type())) pairs.push_back(name);
    all.emplace(name, stored(name, tensor));
  }
  const std::string header = make_header(all, pairs);
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  std::array<char, sizeof(std::uint64_t)> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  }
  file.write(length.data(), length.size());
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const auto& [name, tensor] : all) {
    file.write(static_cast<const char*>(tensor.const_data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
  }
  file.close();
  if (!file) fail_with_system_error();
}

/// Returns the path at the end of a chain of symbolic links, which need not exist.
fs::path target_of(fs::path path) {
  for (int i = 0; i < kMaxLinks && fs::is_symlink(fs::symlink_status(path)); ++i) {
    path = path.parent_path() / fs::read_symlink(path);
  }
  return path;
}

}  // namespace

SafeTensors read_safetensors(const std::filesystem::path& path) {
  const File file(path);
  std::uint64_t data = 0;
  const json header = read_header(file, data);
  SafeTensors read;
  read.about = read_about(header);
  for (const Place& place : read_places(header, file.size() - data)) {
    read.tensors.emplace(place.name, read_tensor(file, place, data));
  }
  join_pairs(read);
  return read;
}

void write_safetensors(const fs::path& path, const NamedTensors& tensors) {
  const fs::file_status status = fs::status(path);
  if (fs::is_directory(status)) throw std::runtime_error("it is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // a pipe or a device
    write_file(path, tensors);
    return;
  }
  const fs::path target = target_of(path);
  const fs::path folder = target.parent_path();
  if (!folder.empty() && !fs::is_directory(folder)) {
    throw std::runtime_error("there is no folder " + folder.string());
  }
  fs::path part = target;
  part += ".part";  // renamed once complete, so that readers never see a partial file
  try {
    write_file(part, tensors);
    fs::rename(part, target);
  } catch (...) {
    std::error_code ignored;
    fs::remove(part, ignored);
    throw;
  }
}

}  // namespace exporter
