#pragma once

#include <exporter/contract.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace exporter {

/// What a safetensors file holds.
struct SafeTensors {
  NamedTensors tensors;  ///< on the CPU, each with memory of its own
  nlohmann::json about =
      nlohmann::json::object();  ///< `exporter` of the metadata (docs/formats.md)
};

/// Reads a file whose header is sound: not longer than the file, every tensor of a known dtype,
/// with as many bytes as its shape needs, and no byte of the data that belongs to none or to two.
/// Throws std::exception otherwise; tensors take no more memory than the file is large.
SafeTensors read_safetensors(const std::filesystem::path& path);

/// Writes tensors, of any device and strides. The file is complete or is not there. Throws
/// std::exception when it cannot be written, or a dtype has no name in the format.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace exporter
