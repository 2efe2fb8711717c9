// Layout: APPNOTE.TXT, section 4.3. Numbers are little-endian.

#include "zip.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace exporter {
namespace {

constexpr std::uint32_t kLargeEnd = 0x06064b50, kLocator = 0x07064b50, kEntry = 0x02014b50,
                        kHeader = 0x04034b50;
constexpr std::uint64_t kMaxDirectory = std::uint64_t{1} << 28;

[[noreturn]] void broken(const std::string& what) { throw std::runtime_error(what + " is broken"); }

/// Reads fields of a record by offset.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t at, std::size_t size) const {
    if (at + size > bytes_.size()) broken("the archive's directory");
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes_[at + i]);
    }
    return value;
  }
  std::string_view text(std::size_t at, std::size_t size) const {
    if (at + size > bytes_.size()) broken("the archive's directory");
    return bytes_.substr(at, size);
  }

 private:
  std::string_view bytes_;
};

std::string read(const File& file, std::uint64_t offset, std::uint64_t size) {
  if (offset > file.size() || size > file.size() - offset) broken("the archive's directory");
  std::string bytes(size, '\0');
  file.read(bytes.data(), size, offset);
  return bytes;
}

struct Directory {
  std::uint64_t entries, size, offset;
};

Directory find_directory(const File& file) {
  constexpr std::uint64_t kLeast = 22, kComment = 0xffff;
  const std::uint64_t searched = std::min(file.size(), kLeast + kComment);
  const std::string tail = read(file, file.size() - searched, searched);
  const auto found = tail.rfind("PK\5\6");
  if (found == std::string::npos || tail.size() - found < kLeast) broken("the archive's end");
  const Fields end(std::string_view(tail).substr(found));
  const Directory small{end.number(10, 2), end.number(12, 4), end.number(16, 4)};
  if (found < 20) return small;
  const Fields locator(std::string_view(tail).substr(found - 20, 20));
  if (locator.number(0, 4) != kLocator) return small;
  const std::string record = read(file, locator.number(8, 8), 56);
  const Fields large(record);
  if (large.number(0, 4) != kLargeEnd) broken("the archive's end");
  return {large.number(32, 8), large.number(40, 8), large.number(48, 8)};
}

/// Reads sizes and offset of a large member from its zip64 extra field.
void read_large(Fields extra, std::size_t size, Member& member) {
  for (std::size_t at = 0; at + 4 <= size;) {
    const std::uint64_t id = extra.number(at, 2), length = extra.number(at + 2, 2);
    at += 4;
    std::size_t next = at;
    at += length;
    if (id != 1) continue;
    for (std::uint64_t* field : {&member.size, &member.stored, &member.offset}) {
      if (*field != 0xffffffff) continue;
      *field = extra.number(next, 8);
      next += 8;
    }
  }
}

/// Replaces the offset of a member's header by the offset of its bytes.
void find_bytes(const File& file, Member& member) {
  const std::string header = read(file, member.offset, 30);
  const Fields fields(header);
  const std::uint64_t name = fields.number(26, 2), extra = fields.number(28, 2);
  if (fields.number(0, 4) != kHeader) broken("the header of " + member.name);
  if (read(file, member.offset + 30, name) != member.name) {
    throw std::runtime_error(member.name + " has another name in its header");
  }
  member.offset += 30 + name + extra;
  if (member.offset > file.size() || member.stored > file.size() - member.offset) {
    throw std::runtime_error(member.name + " is larger than the file");
  }
}

}  // namespace

std::vector<Member> read_directory(const File& file) {
  const Directory directory = find_directory(file);
  if (directory.size > kMaxDirectory) broken("the archive's directory");
  const std::string bytes = read(file, directory.offset, directory.size);
  std::vector<Member> members;
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const Fields entry(std::string_view(bytes).substr(std::min(at, bytes.size())));
    if (entry.number(0, 4) != kEntry) broken("the archive's directory");
    const std::uint64_t flags = entry.number(8, 2), method = entry.number(10, 2);
    const std::uint64_t name = entry.number(28, 2), extra = entry.number(30, 2);
    Member member{std::string(entry.text(46, name)),
                  static_cast<std::uint32_t>(entry.number(16, 4)),
                  entry.number(24, 4),
                  entry.number(20, 4),
                  entry.number(42, 4),
                  method != 0};
    read_large(Fields(entry.text(46 + name, extra)), extra, member);
    if ((flags & 1) != 0) throw std::runtime_error(member.name + " is encrypted");
    if (method != 0 && method != 8) {
      throw std::runtime_error(member.name + " is compressed by an unknown method");
    }
    find_bytes(file, member);
    if (method == 0 && member.size != member.stored) broken("the size of " + member.name);
    at += 46 + name + extra + entry.number(32, 2);
    members.push_back(std::move(member));
  }
  return members;
}

}  // namespace exporter
