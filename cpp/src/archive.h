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

/// Throws Error(kind) unless there is a file to be read.
void require_file(const std::filesystem::path& path, ErrorKind kind);

/// Opens a zip archive that torch wrote, reading no more than its directory. Throws Error(kind)
/// that names the file and the cause.
std::unique_ptr<caffe2::serialize::PyTorchStreamReader> open_archive(
    const std::filesystem::path& path, ErrorKind kind);

/// Whether any record's name starts with `prefix`.
bool has_records_below(caffe2::serialize::PyTorchStreamReader& reader, const std::string& prefix);

/// A record as text. Throws std::runtime_error when its header says more than 256 MB.
std::string read_text(caffe2::serialize::PyTorchStreamReader& reader, const std::string& record);

}  // namespace exporter
