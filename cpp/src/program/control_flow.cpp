// The higher-order operators of torch (torch/_higher_order_ops), which have no kernel.

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <stdexcept>

#include "instructions.h"

namespace exporter::program {
namespace {

using c10::IValue;
using Values = std::vector<IValue>;

Values take_all(const std::vector<Operand>& operands, Frame& frame) {
  Values values;
  values.reserve(operands.size());
  for (const Operand& operand : operands) values.push_back(operand.take(frame));
  return values;
}

bool truth(const IValue& value) {
  return value.isTensor() ? value.toTensor().item().toBool() : value.toBool();
}

Values joined(Values first, const Values& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Returns item `i` of each tensor along its first dimension.
Values items_at(const Values& tensors, std::int64_t i) {
  Values items;
  for (const IValue& value : tensors) items.emplace_back(value.toTensor().select(0, i));
  return items;
}

std::int64_t length_of(const Values& tensors) {
  if (tensors.empty()) throw std::runtime_error("it maps over no tensor");
  return tensors.front().toTensor().size(0);
}

/// An instruction that stores the results of `results`.
class Block : public Instruction {
 public:
  explicit Block(std::vector<Target> targets) : targets_(std::move(targets)) {}

  void run(Frame& frame) const final {
    Values values = results(frame);
    store(values, targets_, frame);
  }

 private:
  virtual Values results(Frame& frame) const = 0;

  std::vector<Target> targets_;
};

class Condition final : public Block {
 public:
  Condition(Operand predicate, Routine if_true, Routine if_false, std::vector<Operand> operands,
            std::vector<Target> targets)
      : Block(std::move(targets)),
        predicate_(std::move(predicate)),
        if_true_(std::move(if_true)),
        if_false_(std::move(if_false)),
        operands_(std::move(operands)) {}

 private:
  Values results(Frame& frame) const override {
    const bool is_true = truth(predicate_.take(frame));
    return (is_true ? if_true_ : if_false_).run(take_all(operands_, frame), frame.observer);
  }

  Operand predicate_;
  Routine if_true_, if_false_;
  std::vector<Operand> operands_;
};

class WhileLoop final : public Block {
 public:
  WhileLoop(Routine condition, Routine body, std::vector<Operand> carried,
            std::vector<Operand> others, std::vector<Target> targets)
      : Block(std::move(targets)),
        condition_(std::move(condition)),
        body_(std::move(body)),
        carried_(std::move(carried)),
        others_(std::move(others)) {}

 private:
  Values results(Frame& frame) const override {
    Values carried = take_all(carried_, frame);
    const Values others = take_all(others_, frame);
    bool ran = false;
    while (truth(condition_.run(joined(carried, others), frame.observer).at(0))) {
      carried = body_.run(joined(std::move(carried), others), frame.observer);
      ran = true;
    }
    // Without an iteration the results would be the operands themselves.
    for (IValue& value : carried) {
      if (!ran && value.isTensor()) value = value.toTensor().clone();
    }
    return carried;
  }

  Routine condition_, body_;
  std::vector<Operand> carried_, others_;
};

/// Stacks one result of every iteration.
class Stacked {
 public:
  explicit Stacked(std::int64_t length) : length_(length) {}

  void add(const IValue& value, std::int64_t i) {
    if (value.isNone()) return;
    const at::Tensor& item = value.toTensor();
    if (i == 0) {
      auto sizes = item.sizes().vec();
      sizes.insert(sizes.begin(), length_);
      all_ = at::empty(sizes, item.options());
    }
    all_.select(0, i).copy_(item);
  }

  IValue take() { return all_.defined() ? IValue(std::move(all_)) : IValue(); }

 private:
  std::int64_t length_;
  at::Tensor all_;
};

/// scan: each iteration takes what the previous one carries, and an item of each tensor. map_impl
/// is a scan that carries nothing.
class Scan final : public Block {
 public:
  Scan(Routine body, std::vector<Operand> carried, std::vector<Operand> mapped,
       std::vector<Operand> others, std::vector<Target> targets)
      : Block(std::move(targets)),
        body_(std::move(body)),
        carried_(std::move(carried)),
        mapped_(std::move(mapped)),
        others_(std::move(others)) {}

 private:
  Values results(Frame& frame) const override {
    Values carried = take_all(carried_, frame);
    const Values mapped = take_all(mapped_, frame), others = take_all(others_, frame);
    const std::int64_t length = length_of(mapped);
    const std::size_t kept = carried.size();
    if (length == 0) throw std::runtime_error("it maps over a dimension of size 0");
    std::vector<Stacked> stacked(body_.outputs.size() - kept, Stacked(length));
    for (std::int64_t i = 0; i < length; ++i) {
      Values made = body_.run(joined(joined(std::move(carried), items_at(mapped, i)), others),
                              frame.observer);
      for (std::size_t k = kept; k < made.size(); ++k) stacked[k - kept].add(made[k], i);
      made.resize(kept);
      carried = std::move(made);
    }
    for (Stacked& all : stacked) carried.push_back(all.take());
    return carried;
  }

  Routine body_;
  std::vector<Operand> carried_, mapped_, others_;
};

/// Settings of torch.autocast for a region; those from before are restored at its end.
struct Autocast {
  at::DeviceType device;
  std::optional<at::ScalarType> dtype;
  bool is_enabled;
  bool is_cached;
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& now)
      : before_{now.device, at::autocast::get_autocast_dtype(now.device),
                at::autocast::is_autocast_enabled(now.device),
                at::autocast::is_autocast_cache_enabled()} {
    at::autocast::increment_nesting();
    apply(now);
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    apply(before_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  static void apply(const Autocast& settings) {
    at::autocast::set_autocast_enabled(settings.device, settings.is_enabled);
    if (settings.dtype) at::autocast::set_autocast_dtype(settings.device, *settings.dtype);
    at::autocast::set_autocast_cache_enabled(settings.is_cached);
  }

  Autocast before_;
};

/// A graph that runs under settings, or as part of the graph around it.
class Region final : public Block {
 public:
  Region(Routine body, std::vector<Operand> operands, std::optional<Autocast> autocast,
         std::vector<Target> targets)
      : Block(std::move(targets)),
        body_(std::move(body)),
        operands_(std::move(operands)),
        autocast_(autocast) {}

 private:
  Values results(Frame& frame) const override {
    std::optional<AutocastGuard> guard;
    if (autocast_) guard.emplace(*autocast_);
    return body_.run(take_all(operands_, frame), frame.observer);
  }

  Routine body_;
  std::vector<Operand> operands_;
  std::optional<Autocast> autocast_;
};

/// The operands of a node, read in order.
class Reader {
 public:
  Reader(const Node& node, Scope& scope) : node_(node), scope_(scope) {}

  const Argument& next() {
    if (at_ == node_.inputs.size()) throw std::runtime_error("it lacks an operand");
    return node_.inputs[at_++].argument;
  }

  Routine routine() {
    const auto* graph = std::get_if<std::shared_ptr<const Graph>>(&next().is);
    if (graph == nullptr) throw std::runtime_error("it lacks a graph");
    std::vector<std::string> inputs;
    for (const Argument& input : (*graph)->inputs) {
      const auto* value = std::get_if<Reference>(&input.is);
      inputs.push_back(value == nullptr ? std::string() : value->name);
    }
    return prepare_graph(**graph, inputs, {}, scope_.context());
  }

  std::vector<Operand> items() { return scope_.bind_items(next()); }
  Operand operand() { return scope_.bind(next()); }
  IValue constant() {
    const auto* value = std::get_if<IValue>(&next().is);
    if (value == nullptr) throw std::runtime_error("one of its settings is not a constant");
    return *value;
  }

  /// Returns the positional operands that are left.
  std::vector<Operand> rest() {
    std::vector<Operand> operands;
    while (at_ < node_.inputs.size() && !node_.inputs[at_].is_keyword)
      operands.push_back(operand());
    return operands;
  }

 private:
  const Node& node_;
  Scope& scope_;
  std::size_t at_ = 0;
};

std::optional<Autocast> read_autocast(Reader& reader, const DeviceChange& devices) {
  const at::Device device = devices.of(at::Device(reader.constant().toStringRef()));
  const IValue dtype = reader.constant(), enabled = reader.constant(), cached = reader.constant();
  return Autocast{device.type(),
                  dtype.isNone() ? std::nullopt : std::optional(dtype.toScalarType()),
                  enabled.toBool(), cached.isNone() || cached.toBool()};
}

void require_operands(const Routine& routine, std::size_t given) {
  if (routine.inputs != given) throw std::runtime_error("its graph takes other operands");
}

std::unique_ptr<const Instruction> region(Reader& reader, std::optional<Autocast> autocast,
                                          const Node& node, Scope& scope) {
  Routine body = reader.routine();
  auto operands = reader.rest();
  require_operands(body, operands.size());
  return std::make_unique<Region>(std::move(body), std::move(operands), autocast,
                                  scope.targets(node));
}

std::unique_ptr<const Instruction> scan(Reader& reader, bool carries, const Node& node,
                                        Scope& scope) {
  Routine body = reader.routine();
  std::vector<Operand> carried;
  if (carries) carried = reader.items();
  auto mapped = reader.items(), others = reader.items();
  require_operands(body, carried.size() + mapped.size() + others.size());
  if (body.outputs.size() < carried.size()) throw std::runtime_error("it carries too little");
  return std::make_unique<Scan>(std::move(body), std::move(carried), std::move(mapped),
                                std::move(others), scope.targets(node));
}

}  // namespace

std::unique_ptr<const Instruction> control_flow(const Node& node, Scope& scope) {
  constexpr std::string_view kPrefix = "torch.ops.higher_order.";
  if (!node.target.starts_with(kPrefix)) return nullptr;
  const std::string_view name = std::string_view(node.target).substr(kPrefix.size());
  Reader reader(node, scope);
  if (name == "cond") {
    Operand predicate = reader.operand();
    Routine if_true = reader.routine(), if_false = reader.routine();
    auto operands = reader.items();
    require_operands(if_true, operands.size());
    require_operands(if_false, operands.size());
    return std::make_unique<Condition>(std::move(predicate), std::move(if_true),
                                       std::move(if_false), std::move(operands),
                                       scope.targets(node));
  }
  if (name == "while_loop") {
    Routine condition = reader.routine(), body = reader.routine();
    auto carried = reader.items(), others = reader.items();
    require_operands(condition, carried.size() + others.size());
    require_operands(body, carried.size() + others.size());
    if (body.outputs.size() != carried.size()) throw std::runtime_error("it carries other values");
    return std::make_unique<WhileLoop>(std::move(condition), std::move(body), std::move(carried),
                                       std::move(others), scope.targets(node));
  }
  if (name == "scan") return scan(reader, /*carries=*/true, node, scope);
  if (name == "map_impl") return scan(reader, /*carries=*/false, node, scope);
  if (name == "wrap_with_set_grad_enabled") {
    reader.constant();  // calls never record gradients
    return region(reader, std::nullopt, node, scope);
  }
  if (name == "wrap_with_autocast") {
    const auto autocast = read_autocast(reader, scope.devices());
    return region(reader, autocast, node, scope);
  }
  throw std::runtime_error("this higher-order operator is not supported");
}

}  // namespace exporter::program
