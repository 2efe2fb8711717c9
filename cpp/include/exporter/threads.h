#pragma once

namespace exporter {

/// The most threads inside one operator. More than this end the process, or its memory.
inline constexpr int kMaxThreads = 1024;

/// Sets how many threads work inside one operator on the CPU: for the whole process, all artifacts
/// and all later calls, whatever thread makes them. Torch's default is one for each core. Threads
/// inside an operator multiply with callers: a server with a caller for each core sets 1. Call it
/// before the first artifact runs. Throws Error(usage) for a number below 1 or above kMaxThreads.
void set_threads(int threads);

}  // namespace exporter
