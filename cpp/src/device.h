#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace exporter {

/// Parses "cpu", "cuda" or "cuda:N". Throws Error(usage) for any other name.
c10::Device parse_device(const std::string& name);

/// Makes a device usable and returns it with its index. Loads the CUDA libraries when a GPU is
/// first requested. `tf32` sets, for the whole process, whether float32 may be computed in TF32 on
/// GPUs. Throws Error(usage) if this machine or this LibTorch lacks the GPU, and torch's own
/// errors.
c10::Device prepare_device(c10::Device device, bool tf32);

struct Capability {
  int major;
  int minor;
};

/// Returns the compute capability of a GPU in use, or nothing if the driver does not report it.
std::optional<Capability> compute_capability(c10::Device device);

/// Waits until the device is idle. Returns immediately for the CPU.
void synchronize(c10::Device device);

}  // namespace exporter
