#pragma once

#include <exporter/error.h>

#include <filesystem>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace exporter {

/// Throws Error(kind) where a file is not what was written. A `SHA256SUMS` beside it, and beside
/// what it links to, has to list it with its hash, unless `sha256` is that hash; where there is
/// neither, every member of an artifact's archive is held against its CRC-32; a golden has none.
/// With `insist`, there has to be a hash. Throws Error(usage) for a `sha256` that is none.
void require_unaltered(const std::filesystem::path& path, ErrorKind kind,
                       const std::string& sha256 = "", bool insist = false);

/// Throws Error(kind) where members of an archive do not have the CRC-32 that its directory says:
/// all of them, or the one of this name below the archive's top folder.
void require_members(const std::filesystem::path& path, ErrorKind kind,
                     caffe2::serialize::PyTorchStreamReader& reader, const std::string& name = "");

}  // namespace exporter
