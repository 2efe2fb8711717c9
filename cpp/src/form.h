#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <string>

namespace exporter {

/// Returns what a tensor is if it is not a dense one with values, such as "nested" or
/// "sparse (SparseCsr)", and an empty string otherwise.
inline std::string unusual_form(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "nested";
  if (tensor.layout() == at::kMkldnn) return "in oneDNN's own layout (Mkldnn)";
  if (tensor.layout() != at::kStrided) return "sparse (" + c10::str(tensor.layout()) + ")";
  return tensor.is_meta() ? "on the device meta, without values" : "";
}

}  // namespace exporter
