#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <map>
#include <string>
#include <vector>

#include "graph.h"
#include "routine.h"

namespace exporter::program {

/// Devices of a saved program that stand for another device in this process.
struct DeviceChange {
  at::DeviceType saved = at::kCPU;
  at::Device actual = at::kCPU;

  bool changes() const { return saved != actual.type(); }
  at::Device of(at::Device device) const { return device.type() == saved ? actual : device; }
};

/// What all graphs of a program share while they are prepared.
struct Context {
  DeviceChange devices;
  bool copies_for_views = false;  ///< a view that the strides forbid is a copy; see `program.cpp`
  std::vector<std::string> problems;  ///< why nodes cannot run, each with its operator and place
};

/// What is known while a graph is prepared: slots and constants by name, and the number of uses of
/// each value that are still to come.
class Scope {
 public:
  Scope(const Graph& graph, Context& context, const std::vector<std::string>& inputs);

  /// Makes a name a constant: a weight.
  void define(const std::string& name, c10::IValue value);
  /// Gives the results of a node their slots.
  std::vector<Target> targets(const Node& node);
  /// The slots of the results that other nodes use.
  std::vector<std::size_t> slots_of(const Node& node) const;
  std::size_t slots() const { return slots_; }
  const DeviceChange& devices() const { return context_.devices; }
  Context& context() const { return context_; }

  /// Prepares an operand as it is. Throws std::runtime_error for an unknown name.
  Operand bind(const Argument& argument);
  /// Prepares an operand for a parameter of this type. `count` is the length of a list that one
  /// number may stand for.
  Operand bind(const Argument& argument, const c10::TypePtr& type, std::optional<int> count = {});
  /// Prepares the items of a list, or a single operand.
  std::vector<Operand> bind_items(const Argument& argument);

 private:
  std::optional<std::size_t> add_slot(const std::string& name);
  Operand lookup(const std::string& name, Operand::Conversion conversion);
  Operand bind_list(const std::vector<Argument>& items, const c10::TypePtr& element);

  Context& context_;
  std::map<std::string, std::size_t> uses_;
  std::map<std::string, std::size_t> slot_of_;
  std::map<std::string, c10::IValue> constants_;
  std::size_t slots_ = 0;
};

}  // namespace exporter::program
