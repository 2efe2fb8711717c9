#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

namespace exporter {

/// Reads what torch.save wrote (plain values and tensors, which come to the CPU), copying no tensor
/// twice. Throws Error(golden) that names the file, also where it was altered: `is_recorded` where
/// a SHA256SUMS beside it has to list it, else by the CRC-32 of its members alone.
c10::IValue read_tensor_file(const std::filesystem::path& path, bool is_recorded);

}  // namespace exporter
