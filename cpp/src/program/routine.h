#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operand.h"

namespace exporter::program {

/// One node, prepared for calls. Instructions hold no state: several threads may run one.
class Instruction {
 public:
  virtual ~Instruction() = default;
  virtual void run(Frame& frame) const = 0;
};

/// Where a result goes: to one slot, to one slot for each tensor of a list, or nowhere.
struct Target {
  std::vector<std::optional<std::size_t>> slots;  ///< nothing: the value is not used
  bool is_list;
};

/// Stores the results of a node. Throws std::runtime_error if a list has another length than the
/// program expects.
void store(std::vector<c10::IValue>& results, const std::vector<Target>& targets, Frame& frame);

/// An instruction and the node that it came from.
struct Step {
  std::unique_ptr<const Instruction> instruction;
  std::string target;  ///< such as "aten.add.Tensor"
  std::string place;   ///< line of the model, such as "net.py:12"; may be empty
  std::string module;  ///< path of the module, such as "encoder.layer.0"; may be empty
  std::vector<std::size_t> results = {};  ///< the slots of its results that are used
};

/// Is told of every step of a run, those of the graphs inside a step included.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before(const Step& step, const Frame& frame) = 0;
  virtual void after(const Step& step, const Frame& frame) = 0;
};

/// A graph, prepared for calls.
struct Routine {
  std::size_t slots = 0;
  std::size_t inputs = 0;  ///< in the first slots
  std::vector<Step> steps;
  std::vector<Operand> outputs;

  /// Runs all steps and returns the outputs. An exception from a step becomes one that names its
  /// operator and place; what tells that memory ran out passes through.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs, Observer* observer = nullptr) const;
};

}  // namespace exporter::program
