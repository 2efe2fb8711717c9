#include <ATen/Parallel.h>
#include <exporter/error.h>
#include <exporter/threads.h>

#include <string>

namespace exporter {

void set_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw Error(ErrorKind::usage, "threads is " + std::to_string(threads) +
                                      ", but must be from 1 to " + std::to_string(kMaxThreads));
  }
  at::set_num_threads(threads);
}

}  // namespace exporter
