#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace exporter::program {

struct GuardNode;

/// A condition on the sizes of inputs that torch.export found, such as
/// "L['x'].size()[1] % 2 == 0".
class Guard {
 public:
  /// `inputs` are the names of the program's inputs, empty for those that are not passed because
  /// they are no tensors. Throws std::runtime_error for an expression that is not understood or
  /// names another input.
  Guard(std::string text, const std::vector<std::string>& inputs);
  ~Guard();
  Guard(Guard&&) noexcept;

  /// Throws std::runtime_error, with the sizes, if the inputs do not fulfil the condition.
  void require(std::span<const at::Tensor> inputs) const;

 private:
  std::string text_;
  std::unique_ptr<const GuardNode> root_;
};

}  // namespace exporter::program
