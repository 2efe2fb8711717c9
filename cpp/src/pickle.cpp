#include "pickle.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace exporter {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest), size_(rest.size()) {}

  bool empty() const { return rest_.empty(); }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw std::runtime_error("its pickle is cut short");
    const auto taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    int shift = 0;
    for (const unsigned char byte : take(bytes)) {
      value |= std::uint64_t{byte} << shift;
      shift += 8;
    }
    return value;
  }

  std::string_view line() {
    const auto taken = take(rest_.find('\n') == rest_.npos ? rest_.size() + 1 : rest_.find('\n'));
    take(1);
    return taken;
  }

  /// No pickle remembers more values than it has bytes.
  void memo(std::uint64_t number) const {
    if (number >= size_) throw std::runtime_error("its pickle numbers a value beyond its length");
  }

 private:
  std::string_view rest_;
  std::size_t size_;
};

void require_usual(std::string_view module, std::string_view name) {
  const bool rebuilds = module == "torch._utils" || module == "torch._tensor";
  if (rebuilds && name != "_rebuild_tensor_v2" && name != "_rebuild_parameter") {
    throw std::runtime_error("its pickle calls " + std::string(name) + ", not a plain tensor's");
  }
}

/// How deep the values of a pickle lie in one another: torch walks and frees them by recursion.
class Nesting {
 public:
  void push(int depth = 1) {
    stack_.push_back(values_.size());
    values_.push_back({depth, false});
  }

  void mark() { marks_.push_back(stack_.size()); }

  /// How many values lie above the last mark, which goes.
  std::size_t to_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) fail();
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  /// Makes one value of several.
  void wrap(std::size_t count) { push(pop(count) + 1); }

  /// Puts values into the one below them. One that was referred to before would lie elsewhere too,
  /// and there as deep as it was.
  void put_in(std::size_t count) {
    const int depth = pop(count) + 1;
    if (stack_.empty() || values_[stack_.back()].referred) fail();
    values_[stack_.back()].depth = bounded(std::max(values_[stack_.back()].depth, depth));
  }

  void remember(std::uint64_t number) {
    if (stack_.empty()) fail();
    memo_[number] = stack_.back();
  }

  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) fail();
    values_[found->second].referred = true;
    stack_.push_back(found->second);
  }

 private:
  struct Value {
    int depth;
    bool referred;
  };

  static constexpr int kDeepest = 100;  // a golden's are less than ten deep

  [[noreturn]] static void fail() { throw std::runtime_error("its pickle is not sound"); }

  static int bounded(int depth) {
    if (depth > kDeepest) throw std::runtime_error("its pickle nests too deep");
    return depth;
  }

  /// Takes values off; the depth of the deepest.
  int pop(std::size_t count) {
    if (count > stack_.size()) fail();
    int deepest = 0;
    for (; count > 0; --count) {
      deepest = std::max(deepest, values_[stack_.back()].depth);
      stack_.pop_back();
    }
    return bounded(deepest);
  }

  std::vector<std::size_t> stack_;  // of values' numbers
  std::vector<std::size_t> marks_;
  std::vector<Value> values_;
  std::unordered_map<std::uint64_t, std::size_t> memo_;
};

void follow(Reader& reader, unsigned char opcode, Nesting& nesting) {
  switch (opcode) {
    case 0x80:  // PROTO
      reader.take(1);
      return;
    case 0x95:  // FRAME
      reader.take(8);
      return;
    case 'K':  // BININT1
      reader.take(1);
      return nesting.push();
    case 'M':  // BININT2
      reader.take(2);
      return nesting.push();
    case 'J':  // BININT
      reader.take(4);
      return nesting.push();
    case 'G':  // BINFLOAT
      reader.take(8);
      return nesting.push();
    case 0x8a:  // LONG1
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':   // SHORT_BINSTRING
    case 'C':   // SHORT_BINBYTES
      reader.take(reader.number(1));
      return nesting.push();
    case 'X':  // BINUNICODE
    case 'T':  // BINSTRING
    case 'B':  // BINBYTES
      reader.take(reader.number(4));
      return nesting.push();
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
      reader.take(reader.number(8));
      return nesting.push();
    case 'N':   // NONE
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
    case ')':   // EMPTY_TUPLE
    case ']':   // EMPTY_LIST
    case '}':   // EMPTY_DICT
      return nesting.push();
    case 'c': {  // GLOBAL
      const auto module = reader.line();
      require_usual(module, reader.line());
      return nesting.push();
    }
    case '(':  // MARK
      return nesting.mark();
    case 't':  // TUPLE
    case 'l':  // LIST
    case 'd':  // DICT
      return nesting.wrap(nesting.to_mark());
    case 'Q':   // BINPERSID
    case 0x85:  // TUPLE1
      return nesting.wrap(1);
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
    case 0x86:  // TUPLE2
      return nesting.wrap(2);
    case 0x87:  // TUPLE3
      return nesting.wrap(3);
    case 'a':  // APPEND
    case 'b':  // BUILD
      return nesting.put_in(1);
    case 's':  // SETITEM
      return nesting.put_in(2);
    case 'e':  // APPENDS
    case 'u':  // SETITEMS
      return nesting.put_in(nesting.to_mark());
    case 'h':  // BINGET
      return nesting.recall(reader.number(1));
    case 'j':  // LONG_BINGET
      return nesting.recall(reader.number(4));
    case 'q':  // BINPUT
      return nesting.remember(reader.number(1));
    case 'r': {  // LONG_BINPUT
      const std::uint64_t number = reader.number(4);
      reader.memo(number);
      return nesting.remember(number);
    }
    default:
      throw std::runtime_error("its pickle holds what torch does not write");
  }
}

}  // namespace

void require_sound_pickle(std::string_view pickle) {
  Reader reader(pickle);
  Nesting nesting;
  while (!reader.empty()) {
    const auto opcode = static_cast<unsigned char>(reader.take(1).front());
    if (opcode == '.') return;  // STOP
    follow(reader, opcode, nesting);
  }
}

}  // namespace exporter
