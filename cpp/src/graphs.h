#pragma once

#include "runner.h"

namespace exporter {

/// Returns whether libexporter_cuda.so is installed beside this program or library.
bool can_capture_graphs();

/// Wraps a runner on a GPU. Captures each new shape into a CUDA graph, up to `limit` shapes; others
/// run without a graph. Loads libexporter_cuda.so, and throws Error(usage) if it cannot be loaded.
std::unique_ptr<Runner> capture_graphs(std::unique_ptr<Runner> inner, int limit);

}  // namespace exporter

/// The entry point of libexporter_cuda.so. Takes ownership of `inner`; the caller owns the result.
extern "C" exporter::Runner* exporter_make_graphs(exporter::Runner* inner, int limit);
