#pragma once

#include "runner.h"

namespace exporter {

/// Whether this build has libexporter_cuda.so beside it.
bool can_capture_graphs();

/// Wraps a runner that lives on a GPU: each shape that it meets is captured into a CUDA graph, at
/// most `limit` of them; others run as they are. Loads libexporter_cuda.so. Throws Error(usage)
/// when there is none.
std::unique_ptr<Runner> capture_graphs(std::unique_ptr<Runner> inner, int limit);

}  // namespace exporter

/// What libexporter_cuda.so offers; it takes over `inner`.
extern "C" exporter::Runner* exporter_make_graphs(exporter::Runner* inner, int limit);
