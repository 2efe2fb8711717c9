#pragma once

#include <exporter/error.h>

#include <filesystem>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace exporter {

/// Throws Error(kind) if a file was altered. It is compared with `sha256` and with a `SHA256SUMS`
/// file beside it or, if it is a link, beside its target. Without `sha256`, that file must list it.
/// If there is no hash, every member of an artifact's archive is checked against its CRC-32; a
/// golden has no CRC-32. With `insist`, a missing hash is an error. Throws Error(usage) if `sha256`
/// is not a hash.
void require_unaltered(const std::filesystem::path& path, ErrorKind kind,
                       const std::string& sha256 = "", bool insist = false);

/// Throws Error(kind) if the CRC-32 of a member of an archive differs from the archive's directory.
/// Checks all members, or only the one with this name below the archive's top folder.
void require_members(const std::filesystem::path& path, ErrorKind kind,
                     caffe2::serialize::PyTorchStreamReader& reader, const std::string& name = "");

}  // namespace exporter
