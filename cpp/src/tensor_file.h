#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

namespace exporter {

/// Reads what torch.save wrote (plain values and tensors, which come to the CPU), copying no tensor
/// twice. Throws Error(golden) that names the file.
c10::IValue read_tensor_file(const std::filesystem::path& path);

}  // namespace exporter
