#include "operand.h"

#include <ATen/ScalarOps.h>

namespace exporter::program {

using c10::IValue;

IValue wrapped_number(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Operand Operand::constant(IValue value) {
  Operand made;
  made.constant_ = std::move(value);
  return made;
}

Operand Operand::slot(std::size_t slot, bool is_last, Conversion conversion) {
  Operand made;
  made.kind_ = Kind::slot;
  made.slot_ = slot;
  made.is_last_ = is_last;
  made.conversion_ = conversion;
  return made;
}

Operand Operand::list(c10::TypePtr element, std::vector<Operand> items) {
  Operand made;
  made.kind_ = Kind::list;
  made.element_ = std::move(element);
  made.items_ = std::move(items);
  return made;
}

IValue Operand::take(Frame& frame) const {
  if (kind_ == Kind::constant) return constant_;
  if (kind_ == Kind::slot) {
    IValue& value = frame.values[slot_];
    if (conversion_ == Conversion::tensor && value.isScalar()) return wrapped_number(value);
    if (conversion_ == Conversion::real && value.isInt()) {
      return static_cast<double>(value.toInt());
    }
    return is_last_ ? std::move(value) : value;
  }
  c10::impl::GenericList list(element_);
  list.reserve(items_.size());
  for (const Operand& item : items_) list.push_back(item.take(frame));
  return list;
}

}  // namespace exporter::program
