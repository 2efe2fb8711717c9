#pragma once

#include <exporter/error.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace exporter {

/// Throws Error(kind) unless `path` is a readable file.
void require_file(const std::filesystem::path& path, ErrorKind kind);

/// Opens a zip archive written by torch; reads only its directory. Throws Error(kind) that names
/// the file and the cause if it cannot be opened.
std::unique_ptr<caffe2::serialize::PyTorchStreamReader> open_archive(
    const std::filesystem::path& path, ErrorKind kind);

/// Returns whether any record's name starts with `prefix`.
bool has_records_below(caffe2::serialize::PyTorchStreamReader& reader, const std::string& prefix);

/// Returns a record as text. Throws std::runtime_error if its size exceeds 256 MB.
std::string read_text(caffe2::serialize::PyTorchStreamReader& reader, const std::string& record);

}  // namespace exporter
