#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <exporter/error.h>
#include <exporter/operators.h>

#include <algorithm>

#include "guard.h"
#include "libtorch.h"
#include "stand_in.h"

namespace exporter {
namespace {

namespace fs = std::filesystem;

/// Loads libraries that operator libraries depend on and this process may lack: libtorch.so, which
/// is not on a search path and loads the CUDA libraries of a CUDA build, and libtorch_python.so,
/// which torch.utils.cpp_extension links although nothing uses it.
void load_dependencies() {
  dlopen((libtorch_directory() / "libtorch.so").c_str(), RTLD_NOW);
  stand_in_for_libtorch_python();
}

}  // namespace

void load_operators(const fs::path& library) {
  std::error_code failed;
  const fs::path file = fs::absolute(library, failed);  // dlopen would search for a bare name
  if (!fs::is_regular_file(file, failed)) {
    throw Error(ErrorKind::usage, library.string() + ": no such library of operators");
  }
  // Resolves all symbols now. Otherwise a missing symbol would end the process during a run.
  if (dlopen(file.c_str(), RTLD_NOW) != nullptr) return;
  load_dependencies();
  if (dlopen(file.c_str(), RTLD_NOW) != nullptr) return;
  throw Error(ErrorKind::usage,
              library.string() + ": cannot be loaded as operators: " + one_line(dlerror()));
}

bool has_operators(const std::string& name_space) {
  const auto names = c10::Dispatcher::singleton().getAllOpNames();
  return std::any_of(names.begin(), names.end(), [&](const c10::OperatorName& name) {
    return name.name.starts_with(name_space + "::");
  });
}

std::optional<fs::path> find_operators(const std::string& name_space) {
  if (name_space != "torchvision") return std::nullopt;
  const fs::path packages = libtorch_directory() / ".." / "..";
  for (const char* name : {"_C_stable.so", "_C.so"}) {  // since torchvision 0.29, and before
    const fs::path file = (packages / "torchvision" / name).lexically_normal();
    std::error_code failed;
    if (fs::is_regular_file(file, failed)) return file;
  }
  return std::nullopt;
}

}  // namespace exporter
