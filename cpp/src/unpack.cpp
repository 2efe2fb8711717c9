#include "unpack.h"

#include <caffe2/serialize/inline_container.h>
#include <elf.h>
#include <exporter/unpacked.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "archive.h"
#include "crc32.h"
#include "file.h"
#include "weights.h"
#include "zip.h"

namespace exporter {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "exporter-package-";
constexpr std::size_t kPiece = std::size_t{1} << 20;

fs::path temporary_folder() {
  const char* given = std::getenv("TMPDIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

/// Locks a folder, which its owner keeps locked as long as it lives. Returns an empty descriptor if
/// the folder belongs to another user, was replaced, or is locked and `wait` is LOCK_NB.
Descriptor lock_folder(const fs::path& folder, int wait) {
  Descriptor held(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat locked{}, there{};
  const bool taken = held.get() >= 0 && fstat(held.get(), &locked) == 0 &&
                     locked.st_uid == geteuid() && flock(held.get(), LOCK_EX | wait) == 0 &&
                     lstat(folder.c_str(), &there) == 0 && there.st_ino == locked.st_ino;
  return taken ? std::move(held) : Descriptor(-1);
}

/// The folder of this process.
class Folder {
 public:
  Folder() {
    // Between creation and locking, another process may remove it as an abandoned folder.
    while (lock_.get() < 0) {
      std::string path = temporary_folder() / (std::string(kPrefix) + "XXXXXX");
      if (mkdtemp(path.data()) == nullptr) {
        throw std::system_error(errno, std::generic_category(),
                                "cannot create a folder in " + temporary_folder().string());
      }
      lock_ = lock_folder(path, 0);
      path_ = path;
    }
  }
  ~Folder() { discard(); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

  void discard() const noexcept {
    std::error_code ignored;
    if (owner_ == getpid()) fs::remove_all(path_, ignored);
  }

 private:
  fs::path path_;
  Descriptor lock_{-1};
  pid_t owner_ = getpid();  // a forked process must not remove the folder
};

[[noreturn]] void cannot_write(const fs::path& path) {
  throw std::system_error(errno, std::generic_category(),
                          path.string() + " cannot be written (set TMPDIR to use another folder)");
}

void write_all(int file, const char* data, std::size_t size, const fs::path& path) {
  while (size > 0) {
    const ssize_t count = write(file, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) cannot_write(path);
    data += count;
    size -= static_cast<std::size_t>(count);
  }
}

/// Calls `action` for each piece of a member's bytes.
template <typename Action>
void for_each_piece(const File& archive, caffe2::serialize::PyTorchStreamReader& reader,
                    const Member& member, Action&& action) {
  if (member.compressed) {
    const std::string text = read_text(reader, member.name.substr(member.name.find('/') + 1));
    action(text.data(), text.size());
    return;
  }
  std::vector<char> piece(std::min<std::uint64_t>(kPiece, member.size));
  for (std::uint64_t at = 0; at < member.size; at += piece.size()) {
    const auto size = std::min<std::uint64_t>(piece.size(), member.size - at);
    archive.read(piece.data(), size, member.offset + at);
    action(piece.data(), size);
  }
}

/// Writes a member to a file and checks its CRC-32. Overwrites an existing file in place, because a
/// library may be loaded from it.
void write_member(const File& archive, caffe2::serialize::PyTorchStreamReader& reader,
                  const Member& member, const fs::path& path) {
  fs::create_directories(path.parent_path());
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) cannot_write(path);
  std::uint32_t crc = 0;
  for_each_piece(archive, reader, member, [&](const char* data, std::size_t size) {
    crc = crc32(data, size, crc);
    write_all(file.get(), data, size, path);
  });
  if (crc != member.crc) {
    throw std::runtime_error("it was altered: the CRC-32 of " + member.name +
                             " differs from the one in the archive's directory");
  }
}

/// Returns the path for a member; empty if it is not a part of the model.
fs::path place_of(const Member& member) {
  const fs::path path = member.name.substr(member.name.find('/') + 1);
  if (path.empty() || *path.begin() != "data" || !path.has_filename()) return {};
  for (const fs::path& part : path) {
    if (part == ".." || part == ".") throw std::runtime_error(member.name + " is not a valid name");
  }
  return path;
}

/// Returns the byte ranges of the weights in a library: sections for large data, and data appended
/// to the file.
std::vector<std::pair<std::uint64_t, std::uint64_t>> find_weights(const File& library) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  Elf64_Ehdr header{};
  if (library.size() < sizeof header) return found;
  library.read(&header, sizeof header, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum) {
    return found;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  library.read(sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff);
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  std::uint64_t end = header.e_shoff + sections.size() * sizeof(Elf64_Shdr);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type == SHT_NOBITS || section.sh_size == 0) continue;
    end = std::max(end, section.sh_offset + section.sh_size);
    char name[9] = {};
    if (names.sh_offset + section.sh_name + sizeof name > library.size()) continue;
    library.read(name, sizeof name, names.sh_offset + section.sh_name);
    const std::string_view text(name, sizeof name);
    if (text == std::string_view(".lrodata\0", 9) ||
        text.starts_with(std::string_view(".ldata\0", 7))) {
      found.emplace_back(section.sh_offset, section.sh_size);
    }
  }
  if (end < library.size()) found.emplace_back(end, library.size() - end);
  return found;
}

/// Frees the disk and memory of a library's weights. The library cannot run until it is unpacked
/// again. It stays loaded, because threads that called it hold thread-local data of it.
void drop_weights(const fs::path& library) {
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const Descriptor file(open(library.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  for (const auto& [offset, size] : find_weights(File(library))) {
    const std::uint64_t from = (offset + page - 1) / page * page;
    const std::uint64_t to = (offset + size) / page * page;
    if (from >= to) continue;
    // A file system without support for holes keeps the weights.
    fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
              static_cast<off_t>(to - from));
  }
}

/// The packages that this process has unpacked, by content.
class Registry {
 public:
  struct Slot {
    fs::path folder;
    std::size_t users = 0;
  };

  pid_t owner() const { return owner_; }

  Slot& acquire(const fs::path& package) {
    const File archive(package);
    const auto members = read_directory(archive);
    Slot& slot = slots_[content_of(members)];
    if (slot.folder.empty()) {
      slot.folder = folder_.path() / std::to_string(slots_.size());
    }
    if (slot.users == 0) {
      const auto reader = open_archive(package, ErrorKind::artifact);
      for (const Member& member : members) {
        const fs::path place = place_of(member);
        if (!place.empty() && !is_mapped(member, members))
          write_member(archive, *reader, member, slot.folder / place);
      }
    }
    ++slot.users;
    return slot;
  }

  void release(Slot& slot) noexcept {
    if (--slot.users > 0 || owner_ != getpid()) return;
    try {
      for (const auto& entry : fs::recursive_directory_iterator(slot.folder)) {
        if (entry.path().extension() == ".so") drop_weights(entry.path());
      }
    } catch (const std::exception&) {  // the weights are kept
    }
  }

  void discard() const noexcept { folder_.discard(); }

 private:
  /// Returns a key of names, sizes and CRCs of all members. Unpacking verifies the CRCs.
  static std::string content_of(const std::vector<Member>& members) {
    std::string content;
    for (const Member& member : members) {
      content += member.name + '\0' + std::to_string(member.size) + ' ' +
                 std::to_string(member.crc) + '\0';
    }
    return content;
  }

  pid_t owner_ = getpid();
  Folder folder_;
  std::map<std::string, Slot> slots_;
};

std::timed_mutex& registering() {
  static std::timed_mutex mutex;
  return mutex;
}

/// Returns the registry of this process. A forked process makes its own.
std::shared_ptr<Registry>& registry() {
  static std::shared_ptr<Registry> one;
  return one;
}

}  // namespace

std::shared_ptr<const fs::path> unpack(const fs::path& package) {
  const std::lock_guard lock(registering());
  auto& shared = registry();
  if (shared == nullptr || shared->owner() != getpid()) {
    sweep_unpacked();
    shared = std::make_shared<Registry>();
  }
  Registry::Slot& slot = shared->acquire(package);
  return {&slot.folder, [shared, &slot](const fs::path*) {
            const std::lock_guard lock(registering());
            shared->release(slot);
          }};
}

void sweep_unpacked() noexcept try {
  for (const auto& entry : fs::directory_iterator(temporary_folder())) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const Descriptor left = lock_folder(entry.path(), LOCK_NB);
    std::error_code ignored;
    if (left.get() >= 0) fs::remove_all(entry.path(), ignored);
  }
} catch (const std::exception&) {  // the folder cannot be read; opening a package reports that
}

void discard_unpacked() noexcept {
  const std::unique_lock lock(registering(),
                              std::chrono::seconds(2));  // gives up if one is being unpacked
  if (lock && registry()) registry()->discard();
}

}  // namespace exporter
