#pragma once

namespace exporter {

/// Maximum number of threads inside one operator. More would crash the process or exhaust memory.
inline constexpr int kMaxThreads = 1024;

/// Sets the number of threads inside one operator on the CPU, for the whole process: all artifacts
/// and all later calls from any thread. Torch's default is one per core. The total is this number
/// times the number of concurrent callers, so a server with one caller per core sets 1. Call it
/// before the first artifact runs. Throws Error(usage) for a number below 1 or above kMaxThreads.
void set_threads(int threads);

}  // namespace exporter
