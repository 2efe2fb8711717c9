#include "archive.h"

#include <caffe2/serialize/inline_container.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "guard.h"

namespace exporter {

using caffe2::serialize::PyTorchStreamReader;

namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 28;

}  // namespace

// torch's reader does not say why it cannot open a file, so this asks the system first.
void require_file(const std::filesystem::path& path, ErrorKind kind) {
  if (access(path.c_str(), R_OK) != 0) {
    throw Error(kind, path.string() + ": " + std::strerror(errno));
  }
  const std::filesystem::file_status status = std::filesystem::status(path);
  if (std::filesystem::is_directory(status)) throw Error(kind, path.string() + " is a directory");
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(kind, path.string() +
                          " is a pipe or device, which cannot be read from any position: write its "
                          "contents to a file, and give that file");
  }
}

std::unique_ptr<PyTorchStreamReader> open_archive(const std::filesystem::path& path,
                                                  ErrorKind kind) {
  require_file(path, kind);
  try {
    return std::make_unique<PyTorchStreamReader>(path.string());
  } catch (const c10::Error& error) {
    if (path.extension() == ".onnx") {
      throw Error(kind, path.string() + ": ONNX models run in onnxruntime, not here");
    }
    std::string cause = one_line(error.what_without_backtrace());
    cause = cause.substr(0, cause.find(". "));  // the rest is advice about torch.save
    const bool is_in_bundle = std::filesystem::exists(path.parent_path() / "SHA256SUMS");
    throw Error(kind, path.string() + " is not an archive written by torch, or " +
                          (is_in_bundle ? "it is corrupted (run `exporter check` on its bundle to "
                                          "see if it was altered): "
                                        : "its copy is incomplete (copy or export it again): ") +
                          cause);
  }
}

bool has_records_below(PyTorchStreamReader& reader, const std::string& prefix) {
  const auto records = reader.getAllRecords();
  return std::any_of(records.begin(), records.end(),
                     [&](const std::string& name) { return name.starts_with(prefix); });
}

std::string read_text(PyTorchStreamReader& reader, const std::string& record) {
  if (reader.getRecordSize(record) > kMaxText) throw std::runtime_error(record + " is too large");
  const auto [data, size] = reader.getRecord(record);
  return {static_cast<const char*>(data.get()), size};
}

}  // namespace exporter
