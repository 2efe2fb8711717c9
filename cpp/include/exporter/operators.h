#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace exporter {

/// Loads a shared library that registers operators (TORCH_LIBRARY), such as torchvision's. Call it
/// before opening an artifact that uses them. Loading the same library again does nothing.
///
/// A library that links libtorch.so, as those of CUDA wheels do, loads all CUDA libraries of this
/// LibTorch into the process. A library that links libtorch_python.so without calling it gets an
/// empty library of that name; a process that embeds Python must therefore import torch first.
///
/// Throws Error(usage) if the library is missing or cannot be loaded. A library whose registration
/// fails (the same namespace twice) ends the process, because no exception can pass the dynamic
/// linker.
void load_operators(const std::filesystem::path& library);

/// Returns whether any operator of the namespace is registered in this process, such as
/// "torchvision".
bool has_operators(const std::string& name_space);

/// Returns the library that registers the namespace, if known. Only torchvision's is known, in the
/// Python environment that this LibTorch belongs to.
std::optional<std::filesystem::path> find_operators(const std::string& name_space);

}  // namespace exporter
