// Operators of one's own, as users write them: a library that the tests load with --ops-lib.

#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

at::Tensor affine(const at::Tensor& x, double scale, double shift) { return x * scale + shift; }

}  // namespace

TORCH_LIBRARY(exporter_test, m) { m.def("affine(Tensor x, float scale, float shift) -> Tensor"); }

// Explicit, so that torch.export keeps the call; for all devices, and so for tensors without data.
TORCH_LIBRARY_IMPL(exporter_test, CompositeExplicitAutograd, m) { m.impl("affine", affine); }
