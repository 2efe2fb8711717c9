#include <exporter/version.h>
#include <torch/version.h>

namespace exporter {
namespace {

// Tells which LibTorch a program was built for; exporter/core/runners.py reads it from the file.
[[gnu::used]] constexpr char kBuild[] = "\nbuilt for LibTorch " EXPORTER_LIBTORCH "\n";

}  // namespace

const char* version() { return EXPORTER_VERSION; }

const char* torch_version() { return TORCH_VERSION; }

}  // namespace exporter
