// Python expressions over the sizes of inputs: torch/fx/experimental/symbolic_shapes.py prints
// them.

#include "guards.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <stdexcept>

#include "numbers.h"

namespace exporter::program {

using c10::IValue;
using Inputs = std::span<const at::Tensor>;

/// A condition that was read.
struct GuardNode {
  using Function = std::function<IValue(Inputs)>;

  /// A property of an input, such as "the size of dimension 3 of x".
  struct Mention {
    std::string words;
    Function value;
  };

  Function function;
  std::string plain;  ///< the condition with x.size(3) for L['x'].size()[3]
  std::vector<Mention> mentions;
};

namespace {

using Part = GuardNode::Function;
using Mention = GuardNode::Mention;

constexpr int kMaxGuardTerms = 1000;        // each may nest once more, also when it is evaluated
constexpr std::size_t kMaxLength = 10'000;  // of an expression

bool is_true(const IValue& value) {
  return value.isBool()  ? value.toBool()
         : value.isInt() ? value.toInt() != 0
                         : value.toDouble() != 0;
}

Part call(const char* target, std::vector<Part> operands) {
  const NumberFunction* function = find_number_function(target);
  return [function, operands = std::move(operands)](Inputs inputs) {
    std::array<IValue, 3> values;
    for (std::size_t i = 0; i < operands.size(); ++i) values[i] = operands[i](inputs);
    return function->function(std::span(values).first(operands.size()));
  };
}

class Parser {
 public:
  Parser(std::string_view text, const std::vector<std::string>& inputs)
      : whole_(text), text_(text), inputs_(inputs) {}

  GuardNode parse() {
    if (text_.size() > kMaxLength) fail();
    Part node = disjunction();
    skip();
    if (!text_.empty()) fail();
    return {std::move(node), plain_ + std::string(whole_.substr(copied_)), std::move(mentions_)};
  }

 private:
  struct Operator {
    const char* text;
    const char* target;
  };

  [[noreturn]] static void fail() { throw std::runtime_error("it is not understood"); }

  void skip() { text_.remove_prefix(std::min(text_.find_first_not_of(' '), text_.size())); }

  bool take(std::string_view token) {
    skip();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  void require(std::string_view token) {
    if (!take(token)) fail();
  }

  Part disjunction() {
    Part left = conjunction();
    while (take("or ")) {
      left = [left, right = conjunction()](Inputs x) -> IValue {
        return is_true(left(x)) || is_true(right(x));
      };
    }
    return left;
  }

  Part conjunction() {
    Part left = negation();
    while (take("and ")) {
      left = [left, right = negation()](Inputs x) -> IValue {
        return is_true(left(x)) && is_true(right(x));
      };
    }
    return left;
  }

  Part negation() {
    if (++terms_ > kMaxGuardTerms) fail();
    if (take("not ")) return call("torch.sym_not", {negation()});
    return comparison();
  }

  /// A chain, such as 2 <= x < 8, holds if each of its comparisons does.
  Part comparison() {
    static constexpr Operator kOperators[] = {{"==", "_operator.eq"}, {"!=", "_operator.ne"},
                                              {"<=", "_operator.le"}, {">=", "_operator.ge"},
                                              {"<", "_operator.lt"},  {">", "_operator.gt"}};
    Part left = sum(), chain;
    for (const char* target = next(kOperators); target != nullptr; target = next(kOperators)) {
      const Part right = sum();
      const Part one = call(target, {left, right});
      chain = !chain ? one : [chain, one](Inputs x) -> IValue {
        return is_true(chain(x)) && is_true(one(x));
      };
      left = right;
    }
    return chain ? chain : left;
  }

  Part sum() {
    static constexpr Operator kOperators[] = {{"+", "_operator.add"}, {"-", "_operator.sub"}};
    Part left = product();
    for (const char* target = next(kOperators); target != nullptr; target = next(kOperators)) {
      left = call(target, {left, product()});
    }
    return left;
  }

  Part product() {
    static constexpr Operator kOperators[] = {{"//", "_operator.floordiv"},
                                              {"/", "_operator.truediv"},
                                              {"%", "_operator.mod"},
                                              {"*", "_operator.mul"}};
    Part left = unary();
    for (const char* target = next(kOperators); target != nullptr; target = next(kOperators)) {
      left = call(target, {left, unary()});
    }
    return left;
  }

  template <std::size_t N>
  const char* next(const Operator (&operators)[N]) {
    skip();
    if (text_.starts_with("**")) return nullptr;
    for (const Operator& one : operators) {
      if (take(one.text)) return one.target;
    }
    return nullptr;
  }

  Part unary() {
    if (++terms_ > kMaxGuardTerms) fail();
    if (take("-")) return call("_operator.neg", {unary()});
    Part base = atom();
    return take("**") ? call("_operator.pow", {base, unary()}) : base;
  }

  Part atom() {
    skip();
    if (take("True")) return [](Inputs) { return IValue(true); };
    if (take("False")) return [](Inputs) { return IValue(false); };
    if (take("(")) {
      Part inner = disjunction();
      require(")");
      return inner;
    }
    for (const char* name :
         {"torch.sym_max", "torch.sym_min", "torch.sym_not", "torch.sym_float", "torch.sym_int",
          "torch._sym_sqrt", "math.trunc", "math.floor", "math.ceil"}) {
      if (take(std::string(name) + "(")) return function(name);
    }
    if (take("max(")) return function("torch.sym_max");
    if (take("min(")) return function("torch.sym_min");
    if (take("L[")) {
      start_ = whole_.size() - text_.size() - 2;
      return property(input());
    }
    return number();
  }

  Part function(const char* name) {
    std::vector<Part> operands;
    do operands.push_back(disjunction());
    while (take(","));
    require(")");
    if (operands.size() != find_number_function(name)->operands) fail();
    return call(name, std::move(operands));
  }

  Part number() {
    std::int64_t whole = 0;
    const char* const end = text_.data() + text_.size();
    const auto read = std::from_chars(text_.data(), end, whole);
    if (read.ec == std::errc{} && (read.ptr == end || *read.ptr != '.')) {
      text_.remove_prefix(static_cast<std::size_t>(read.ptr - text_.data()));
      return [whole](Inputs) { return IValue(whole); };
    }
    double real = 0;
    const auto other = std::from_chars(text_.data(), end, real);
    if (other.ec != std::errc{}) fail();
    text_.remove_prefix(static_cast<std::size_t>(other.ptr - text_.data()));
    return [real](Inputs) { return IValue(real); };
  }

  /// Reads the rest of L['x'] or L['x']['y'] and returns the position of the input.
  std::size_t input() {
    std::vector<std::string> path;
    do {
      const char quote = text_.empty() ? '\0' : text_.front();
      const bool quoted = quote == '\'' || quote == '"';
      if (quoted) text_.remove_prefix(1);
      const auto end = text_.find(quoted ? quote : ']');
      if (end == std::string_view::npos) fail();
      path.emplace_back(text_.substr(0, end));
      text_.remove_prefix(end + (quoted ? 1 : 0));
      require("]");
    } while (take("["));
    return position(path);
  }

  /// Returns the position among the tensors that a call takes.
  std::size_t position(const std::vector<std::string>& path) const {
    const auto found = find(path);
    if (found == inputs_.end() || found->empty()) {
      throw std::runtime_error("there is no input " + joined(path));
    }
    return static_cast<std::size_t>(std::count_if(
        inputs_.begin(), found, [](const std::string& name) { return !name.empty(); }));
  }

  /// torch.export names x['y'] x_y, but the y of **x just y. In the strict mode, inputs are
  /// counted.
  std::vector<std::string>::const_iterator find(const std::vector<std::string>& path) const {
    const auto found = std::ranges::find(inputs_, joined(path));
    if (found != inputs_.end() || path.size() < 2) return found;
    if (path.size() == 2 && path.front() == "flat_args") {
      std::size_t index = inputs_.size();
      std::from_chars(path[1].data(), path[1].data() + path[1].size(), index);
      return inputs_.begin() + static_cast<std::ptrdiff_t>(std::min(index, inputs_.size()));
    }
    return std::ranges::find(inputs_, joined({path.begin() + 1, path.end()}));
  }

  static std::string joined(const std::vector<std::string>& path) {
    std::string name;
    for (const std::string& part : path) name += (name.empty() ? "" : "_") + part;
    std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
  }

  Part property(std::size_t input) {
    const std::string& name = *std::ranges::find_if(
        inputs_,
        [left = input](const std::string& one) mutable { return !one.empty() && left-- == 0; });
    if (take(".storage_offset()")) {
      return mentioned(name + ".storage_offset()", "the storage offset of " + name,
                       [input](Inputs x) { return IValue(x[input].storage_offset()); });
    }
    if (take(".numel()")) {
      return mentioned(name + ".numel()", "the number of elements of " + name,
                       [input](Inputs x) { return IValue(x[input].numel()); });
    }
    const bool is_size = take(".size()[") || take(".shape[");
    if (!is_size && !take(".stride()[")) fail();
    std::int64_t dimension = 0;
    const auto [end, status] =
        std::from_chars(text_.data(), text_.data() + text_.size(), dimension);
    if (status != std::errc{}) fail();
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    require("]");
    const std::string kind = is_size ? "size" : "stride", number = std::to_string(dimension);
    return mentioned(
        name + "." + kind + "(" + number + ")",
        "the " + kind + " of dimension " + number + " of " + name, [=](Inputs x) {
          return IValue(is_size ? x[input].size(dimension) : x[input].stride(dimension));
        });
  }

  /// Records a property, and puts its short form in the place of what was read.
  Part mentioned(std::string code, std::string words, Part value) {
    const auto end = whole_.size() - text_.size();
    plain_ += std::string(whole_.substr(copied_, start_ - copied_)) + code;
    copied_ = end;
    const bool is_new = std::ranges::find(mentions_, words, &Mention::words) == mentions_.end();
    if (is_new) mentions_.push_back({std::move(words), value});
    return value;
  }

  std::string_view whole_, text_;  // all of it, and what is left to read
  const std::vector<std::string>& inputs_;
  std::string plain_;  // what was read, with short names of properties, up to copied_
  std::size_t start_ = 0, copied_ = 0;
  std::vector<Mention> mentions_;
  int terms_ = 0;
};

}  // namespace

Guard::Guard(std::string text, const std::vector<std::string>& inputs) : text_(std::move(text)) {
  try {
    root_ = std::make_unique<const GuardNode>(Parser(text_, inputs).parse());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("the condition `" + text_ + "` of its program cannot be checked: " +
                             error.what() + "; export the model with exporter instead");
  }
}

Guard::~Guard() = default;
Guard::Guard(Guard&&) noexcept = default;

void Guard::require(std::span<const at::Tensor> inputs) const {
  if (is_true(root_->function(inputs))) return;
  const auto value = [&](const Mention& one) { return one.value(inputs).toInt(); };
  const auto& mentions = root_->mentions;
  if (mentions.size() == 1) {
    throw std::runtime_error(mentions[0].words + " must satisfy `" + root_->plain + "`; it is " +
                             std::to_string(value(mentions[0])));
  }
  std::string values;
  for (const Mention& one : mentions) {
    values += (values.empty() ? "; " : ", ") + one.words + " is " + std::to_string(value(one));
  }
  throw std::runtime_error("the inputs must satisfy `" + root_->plain + "`" + values);
}

}  // namespace exporter::program
