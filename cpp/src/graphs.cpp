#include "graphs.h"

#include <dlfcn.h>
#include <exporter/error.h>

#include <array>

#include "guard.h"

namespace exporter {
namespace {

constexpr const char* kLibrary = "libexporter_cuda.so";

/// Finds the library beside the program or library that contains this code, or in the lib folder
/// beside that folder. Returns an empty path if there is none.
std::filesystem::path find_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&can_capture_graphs), &info) == 0) return {};
  std::error_code ignored;
  const auto here = std::filesystem::canonical(info.dli_fname, ignored).parent_path();
  for (const auto& folder : {here, here.parent_path() / "lib", here.parent_path() / "lib64"}) {
    if (std::filesystem::exists(folder / kLibrary, ignored)) return folder / kLibrary;
  }
  return {};
}

}  // namespace

bool can_capture_graphs() { return !find_library().empty(); }

std::unique_ptr<Runner> capture_graphs(std::unique_ptr<Runner> inner, int limit) {
  const auto library = find_library();
  void* handle = library.empty() ? nullptr : dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(ErrorKind::usage,
                library.empty()
                    ? "CUDA graphs were requested, but " + std::string(kLibrary) +
                          " is not beside this program: it was built without CUDA's headers"
                    : "CUDA graphs are not available: " + one_line(dlerror()));
  }
  const auto make =
      reinterpret_cast<decltype(&exporter_make_graphs)>(dlsym(handle, "exporter_make_graphs"));
  if (make == nullptr) throw Error(ErrorKind::usage, library.string() + " has another version");
  return std::unique_ptr<Runner>(make(inner.release(), limit));
}

}  // namespace exporter
