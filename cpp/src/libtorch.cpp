#include "libtorch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

namespace exporter {

std::filesystem::path libtorch_directory() {
  Dl_info info{};
  const void* within = &c10::impl::device_guard_impl_registry;
  if (dladdr(within, &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

}  // namespace exporter
