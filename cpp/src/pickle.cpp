#include "pickle.h"

#include <cstdint>
#include <stdexcept>
#include <string>

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

void skip_arguments(Reader& reader, unsigned char opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
    case 'h':   // BINGET
    case 'q':   // BINPUT
    case 'K':   // BININT1
      reader.take(1);
      return;
    case 'M':  // BININT2
      reader.take(2);
      return;
    case 'J':  // BININT
    case 'j':  // LONG_BINGET
      reader.take(4);
      return;
    case 'G':   // BINFLOAT
    case 0x95:  // FRAME
      reader.take(8);
      return;
    case 'r':  // LONG_BINPUT
      reader.memo(reader.number(4));
      return;
    case 0x8a:  // LONG1
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':   // SHORT_BINSTRING
    case 'C':   // SHORT_BINBYTES
      reader.take(reader.number(1));
      return;
    case 'X':  // BINUNICODE
    case 'T':  // BINSTRING
    case 'B':  // BINBYTES
      reader.take(reader.number(4));
      return;
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
      reader.take(reader.number(8));
      return;
    case 'c': {  // GLOBAL
      const auto module = reader.line();
      require_usual(module, reader.line());
      return;
    }
    default:  // without arguments, or not known to torch either
      return;
  }
}

}  // namespace

void require_sound_pickle(std::string_view pickle) {
  Reader reader(pickle);
  while (!reader.empty()) {
    const auto opcode = static_cast<unsigned char>(reader.take(1).front());
    if (opcode == '.') return;  // STOP
    skip_arguments(reader, opcode);
  }
}

}  // namespace exporter
