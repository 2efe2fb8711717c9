#include "device.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <mutex>

#include "guard.h"
#include "libtorch.h"

namespace exporter {
namespace {

/// Loads torch's CUDA libraries. Linking to them would map gigabytes into every process on the CPU.
void load_cuda() {
  static std::once_flag once;
  std::call_once(once, [] {
    // libtorch.so depends on libtorch_cuda.so, and compiled packages link it by that name. Global,
    // because they resolve their CUDA symbols there.
    const auto library = libtorch_directory() / "libtorch.so";
    if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw Error(ErrorKind::usage,
                  std::string("CUDA was requested, but this LibTorch cannot load it: ") +
                      one_line(dlerror()));
    }
    if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
      throw Error(ErrorKind::usage, "CUDA was requested, but this LibTorch was built without it");
    }
  });
}

}  // namespace

c10::Device parse_device(const std::string& name) {
  try {
    const c10::Device device(name);
    // Compared as text, because torch reads cuda:256 as cuda:0.
    if ((name == "cpu" || device.is_cuda()) && device.str() == name) return device;
  } catch (const std::exception&) {
  }
  throw Error(ErrorKind::usage, "device " + name + " is not cpu, cuda or cuda:N");
}

c10::Device prepare_device(c10::Device device, bool tf32) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  load_cuda();
  const auto* guard = c10::impl::getDeviceGuardImpl(c10::kCUDA);
  const int count = guard->deviceCount();
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw Error(ErrorKind::usage, "device " + device.str() +
                                      " was requested, but this machine has " +
                                      std::to_string(count) + " usable GPU(s)");
  }
  device.set_index(static_cast<c10::DeviceIndex>(index));
  // float32 is computed in float32 unless the contract says otherwise, as in the Python sessions
  // with which C++ sessions are compared.
  at::globalContext().setAllowTF32CuDNN(tf32);
  at::globalContext().setAllowTF32CuBLAS(tf32);
  // An artifact places tensors without an explicit device on the thread's current device.
  guard->setDevice(device);
  return device;
}

std::optional<Capability> compute_capability(c10::Device device) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return std::nullopt;
  using Get = int (*)(int* handle, int ordinal);
  using GetAttribute = int (*)(int* value, int attribute, int handle);
  const auto get = reinterpret_cast<Get>(dlsym(driver, "cuDeviceGet"));
  const auto ask = reinterpret_cast<GetAttribute>(dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  int handle = 0;
  Capability found{};
  const bool known = get != nullptr && ask != nullptr && get(&handle, device.index()) == 0 &&
                     ask(&found.major, kMajor, handle) == 0 &&
                     ask(&found.minor, kMinor, handle) == 0;
  dlclose(driver);
  return known ? std::optional(found) : std::nullopt;
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
}

}  // namespace exporter
