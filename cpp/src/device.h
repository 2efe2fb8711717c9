#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace exporter {

/// Parses "cpu", "cuda" or "cuda:N". Throws Error(usage) for any other name.
c10::Device parse_device(const std::string& name);

/// Makes a device usable and returns it with its index: CUDA's libraries are opened here, the first
/// time that a GPU is asked for. `tf32` says, for the whole process, whether float32 may be
/// computed in TF32 there. Throws Error(usage) when this machine, or this LibTorch, has no such
/// GPU, and whatever torch throws.
c10::Device prepare_device(c10::Device device, bool tf32);

struct Capability {
  int major;
  int minor;
};

/// The compute capability of a GPU that is in use; nothing where the driver does not say.
std::optional<Capability> compute_capability(c10::Device device);

/// Waits until the device is idle; returns at once for the CPU.
void synchronize(c10::Device device);

}  // namespace exporter
