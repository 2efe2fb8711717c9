#include <exporter/version.h>
#include <torch/version.h>

namespace exporter {

const char* version() { return EXPORTER_VERSION; }

const char* torch_version() { return TORCH_VERSION; }

}  // namespace exporter
