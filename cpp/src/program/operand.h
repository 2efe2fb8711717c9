#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace exporter::program {

class Observer;

/// The values of one call, by slot, and the stack on which operators take their operands.
struct Frame {
  std::vector<c10::IValue> values;
  torch::jit::Stack stack;
  Observer* observer = nullptr;
};

/// An operand, prepared for calls: a constant, the value of a slot, or a list of operands.
class Operand {
 public:
  /// What is done to a value that is a number where the operator takes another type.
  enum class Conversion { none, tensor, real };

  static Operand constant(c10::IValue value);
  /// With `is_last`, the value is not read again, so it is moved out of the frame.
  static Operand slot(std::size_t slot, bool is_last, Conversion conversion);
  static Operand list(c10::TypePtr element, std::vector<Operand> items);

  bool is_constant() const { return kind_ == Kind::constant; }
  const c10::IValue& value() const { return constant_; }

  c10::IValue take(Frame& frame) const;

 private:
  enum class Kind { constant, slot, list };

  Kind kind_ = Kind::constant;
  Conversion conversion_ = Conversion::none;
  bool is_last_ = false;
  std::size_t slot_ = 0;
  c10::IValue constant_;
  c10::TypePtr element_;  ///< of a list
  std::vector<Operand> items_;
};

/// Returns the number as a zero-dimensional tensor that does not promote the dtype of others, as
/// eager passes numbers to operators that take tensors.
c10::IValue wrapped_number(const c10::IValue& number);

}  // namespace exporter::program
