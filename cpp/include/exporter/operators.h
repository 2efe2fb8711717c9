#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace exporter {

/// Loads a shared library that registers operators (TORCH_LIBRARY), such as torchvision's. Do so
/// before opening an artifact that calls them; a library that is loaded already is not loaded
/// again.
///
/// A library that asks for libtorch.so, as those of CUDA wheels do, brings all CUDA libraries of
/// this LibTorch into the process. One that asks for libtorch_python.so and calls nothing of it
/// gets an empty library of that name: a process that imports torch into an embedded Python must do
/// so first.
///
/// Throws Error(usage) when the library is missing or cannot be loaded here. One whose registration
/// fails (the same namespace twice) ends the process: no exception passes the dynamic linker.
void load_operators(const std::filesystem::path& library);

/// Whether this process has any operator of the namespace, such as "torchvision".
bool has_operators(const std::string& name_space);

/// The library that registers the namespace, where one is known: torchvision's in the Python
/// environment that this LibTorch belongs to.
std::optional<std::filesystem::path> find_operators(const std::string& name_space);

}  // namespace exporter
