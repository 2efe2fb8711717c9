#pragma once

#include <c10/core/Device.h>

#include <string>

namespace exporter {

/// Parses "cpu", "cuda" or "cuda:N" and makes the device usable: CUDA's libraries are opened here,
/// the first time that a GPU is asked for. Throws Error(usage) for a name that is no device, and
/// Error(runtime) when this machine has no such GPU.
c10::Device use_device(const std::string& name);

/// Waits until the device is idle; returns at once for the CPU.
void synchronize(c10::Device device);

}  // namespace exporter
