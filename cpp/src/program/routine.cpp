#include "routine.h"

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>

#include "../guard.h"

namespace exporter::program {
namespace {

using c10::IValue;

void put(const std::optional<std::size_t>& slot, IValue value, Frame& frame) {
  if (slot) frame.values[*slot] = std::move(value);
}

/// Thrown for a failed step, so that a step around it, such as a loop, does not add its own place.
struct StepFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string described(const Step& step, std::string_view cause) {
  const std::string where = step.place.empty() ? "" : " at " + step.place;
  return one_line(cause) + " (" + step.target + where + ")";
}

/// Rethrows the current exception with the step's name and place.
[[noreturn]] void rethrow(const Step& step) {
  try {
    throw;
  } catch (const StepFailed&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw StepFailed(described(step, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw StepFailed(described(step, error.what()));
  }
}

}  // namespace

void store(std::vector<IValue>& results, const std::vector<Target>& targets, Frame& frame) {
  if (results.size() < targets.size()) throw std::runtime_error("it returned too few results");
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    if (!target.is_list) {
      if (!target.slots.empty()) put(target.slots.front(), std::move(results[i]), frame);
      continue;
    }
    const auto items = results[i].toListRef();
    if (items.size() != target.slots.size()) {
      throw std::runtime_error("it returned " + std::to_string(items.size()) +
                               " tensors where the program expects " +
                               std::to_string(target.slots.size()));
    }
    for (std::size_t k = 0; k < items.size(); ++k) put(target.slots[k], items[k], frame);
  }
}

std::vector<IValue> Routine::run(std::vector<IValue> inputs_of_call, Observer* observer) const {
  TORCH_CHECK(inputs_of_call.size() == inputs, "the program takes ", inputs, " inputs, not ",
              inputs_of_call.size());
  Frame frame;
  frame.values = std::move(inputs_of_call);
  frame.values.resize(slots);
  frame.observer = observer;
  const Step* current = nullptr;
  try {
    for (const Step& step : steps) {
      current = &step;
      if (observer != nullptr) observer->before(step, frame);
      step.instruction->run(frame);
      if (observer != nullptr) observer->after(step, frame);
    }
  } catch (...) {
    rethrow(*current);
  }
  std::vector<IValue> results;
  results.reserve(outputs.size());
  for (const Operand& output : outputs) results.push_back(output.take(frame));
  return results;
}

}  // namespace exporter::program
