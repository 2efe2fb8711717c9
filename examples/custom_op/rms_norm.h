// What the kernels for CPU and CUDA share: the checks of the inputs, and the choice of a type.

#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <type_traits>

namespace example {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Sums of float64 are in float64, those of all other types in float32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline void check(const Tensor& input, const Tensor& weight) {
  STD_TORCH_CHECK(input.dim() > 0, "rms_norm: input has no dimension to normalize");
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == input.size(-1),
                  "rms_norm: weight must have one dimension of ", input.size(-1),
                  ", the last size of input; it has ", weight.dim(), " dimensions and ",
                  weight.numel(), " elements");
  STD_TORCH_CHECK(weight.scalar_type() == input.scalar_type(), "rms_norm: input is ",
                  input.scalar_type(), " and weight is ", weight.scalar_type(),
                  "; they must have the same type");
  STD_TORCH_CHECK(weight.device() == input.device(),
                  "rms_norm: input and weight must be on the same device");
}

/// Calls `act` with a value of the C++ type of `type`'s elements.
template <class Act>
void with_type(ScalarType type, const Act& act) {
  switch (type) {
    case ScalarType::Float:
      return act(float{});
    case ScalarType::Double:
      return act(double{});
    case ScalarType::Half:
      return act(torch::headeronly::Half{});
    case ScalarType::BFloat16:
      return act(torch::headeronly::BFloat16{});
    default:
      STD_TORCH_CHECK(false, "rms_norm: ", type,
                      " is not supported: use Float, Double, Half or BFloat16");
  }
}

}  // namespace example
