#pragma once

#include <exporter/contract.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace exporter {

/// The contents of a safetensors file.
struct SafeTensors {
  NamedTensors tensors;  ///< on the CPU; they share no memory
  nlohmann::json about =
      nlohmann::json::object();  ///< `exporter` of the metadata (docs/formats.md)
};

/// Reads a safetensors file. Throws std::exception if the header is invalid: if it is longer than
/// the file, a dtype is unknown, a tensor's bytes do not fit its shape, or tensors overlap or leave
/// bytes unused. The tensors never take more memory than the file's size.
SafeTensors read_safetensors(const std::filesystem::path& path);

/// Writes tensors with any device and strides. A file is replaced atomically, that of a link at the
/// link's target; a pipe or a device is written to. Throws std::exception if the file cannot be
/// written or the format lacks a dtype or layout.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace exporter
