#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "binder.h"
#include "graph.h"
#include "routine.h"
#include "weights.h"

namespace exporter::program {

/// The inputs that a graph writes to, by name, itself or through views.
std::set<std::string> written_inputs(const Graph& graph);

/// Whether any node of a graph, or of a graph inside it, writes to memory.
bool writes(const Graph& graph);

/// The weights that a program writes to, by their names in the model.
std::set<std::string> written_weights(const SavedProgram& program);

/// A saved program with its weights, prepared for calls.
class Program {
 public:
  /// `tensors` are the weights by their names in the model. Throws std::runtime_error that names
  /// every node that cannot run here, with its line.
  Program(const SavedProgram& saved, const SavedTensors& tensors, const DeviceChange& devices);

  /// Runs the program. Several threads may call this at once if the program writes to no weight.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, Observer* observer = nullptr) const;

  /// Gives the weights that calls write to the values from the file.
  void reset();

  /// The positions of the inputs that calls write to.
  const std::vector<std::size_t>& written() const { return written_; }

 private:
  struct State {
    at::Tensor tensor, initial;
  };

  /// Returns the graph's constants by the names of its inputs.
  std::map<std::string, c10::IValue> weights(const SavedProgram& saved, const SavedTensors& tensors,
                                             const DeviceChange& devices);
  void find_mutations(const SavedProgram& saved, const std::map<std::string, c10::IValue>& weights);
  at::Tensor own(at::Tensor output) const;

  /// A value that is copied at the end of a call: from an output to a weight or an input.
  struct Mutation {
    std::size_t output;
    at::Tensor weight;
    std::size_t input = 0;  ///< if there is no weight
  };

  Routine routine_;
  std::vector<State> states_;
  std::vector<Mutation> mutations_;
  std::vector<std::size_t> user_outputs_;
  std::vector<std::size_t> written_;
  std::set<const void*> storages_;  ///< of the weights
};

}  // namespace exporter::program
