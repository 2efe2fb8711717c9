// Custom operators, as users write them. The tests load this library with --ops-lib.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

at::Tensor affine(const at::Tensor& x, double scale, double shift) { return x * scale + shift; }

/// Waits until N callers are inside at the same time, with any shapes, where N is the first
/// element. Fails after 20 s, immediately if N is 0, and as if memory had run out if N is negative.
at::Tensor meet(const at::Tensor& x) {
  static std::mutex mutex;
  static std::condition_variable came;
  static std::int64_t arrived = 0;
  const auto callers = x.flatten()[0].item<std::int64_t>();
  if (callers == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  TORCH_CHECK_WITH(OutOfMemoryError, callers >= 0, "CUDA out of memory. Raised by the test");
  TORCH_CHECK(callers > 0, "nobody to meet");
  if (callers > 1) {
    std::unique_lock lock(mutex);
    const auto group = arrived++ / callers;
    came.notify_all();
    const bool met = came.wait_for(lock, std::chrono::seconds(20),
                                   [&] { return arrived >= (group + 1) * callers; });
    TORCH_CHECK(met, "waited alone");
  }
  return x.clone();
}

at::Tensor meet_nobody(const at::Tensor& x) { return at::empty_like(x); }

}  // namespace

TORCH_LIBRARY(exporter_test, m) {
  m.def("affine(Tensor x, float scale, float shift) -> Tensor");
  m.def("meet(Tensor x) -> Tensor");
}

// CompositeExplicit, so that torch.export keeps the call; for all devices, including meta.
TORCH_LIBRARY_IMPL(exporter_test, CompositeExplicitAutograd, m) { m.impl("affine", affine); }

TORCH_LIBRARY_IMPL(exporter_test, CPU, m) { m.impl("meet", meet); }
TORCH_LIBRARY_IMPL(exporter_test, Meta, m) { m.impl("meet", meet_nobody); }
