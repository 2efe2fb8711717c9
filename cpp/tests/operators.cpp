// Operators of one's own, as users write them: a library that the tests load with --ops-lib.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

at::Tensor affine(const at::Tensor& x, double scale, double shift) { return x * scale + shift; }

/// Waits until as many callers are inside at the same time as the first element says, of whatever
/// shapes: they come in such groups. Fails when that takes 20 s, and soon where it says 0;
/// where it says less, as if memory had run out.
at::Tensor meet(const at::Tensor& x) {
  static std::mutex mutex;
  static std::condition_variable came;
  static std::int64_t arrived = 0;
  const auto callers = x.flatten()[0].item<std::int64_t>();
  if (callers == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  TORCH_CHECK_WITH(OutOfMemoryError, callers >= 0, "CUDA out of memory. So the test says");
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

// Explicit, so that torch.export keeps the call; for all devices, and so for tensors without data.
TORCH_LIBRARY_IMPL(exporter_test, CompositeExplicitAutograd, m) { m.impl("affine", affine); }

TORCH_LIBRARY_IMPL(exporter_test, CPU, m) { m.impl("meet", meet); }
TORCH_LIBRARY_IMPL(exporter_test, Meta, m) { m.impl("meet", meet_nobody); }
