#include "unpack.h"

#include <caffe2/serialize/inline_container.h>
#include <exporter/unpacked.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "archive.h"
#include "crc32.h"
#include "file.h"
#include "library.h"
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
      std::error_code ignored;
      if (lock_.get() < 0 && fs::remove(path, ignored)) {  // it is still there
        throw std::runtime_error("cannot lock a folder in " + temporary_folder().string() +
                                 ": set TMPDIR to use another folder");
      }
    }
    struct statvfs mount{};
    if (statvfs(path_.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0) {
      discard();
      throw std::runtime_error(temporary_folder().string() +
                               " is mounted with noexec: set TMPDIR to use another folder");
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
  const int code = errno;
  const bool too_many = code == EMFILE || code == ENFILE;
  const char* remedy = too_many ? "raise the limit of open files, as with ulimit -n"
                                : "set TMPDIR to use another folder";
  throw std::system_error(code, std::generic_category(),
                          path.string() + " cannot be written (" + remedy + ")");
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

Descriptor create(const fs::path& path) {
  fs::create_directories(path.parent_path());
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) cannot_write(path);
  return file;
}

/// Writes a member to a file and checks its CRC-32. Overwrites a file in place, because a library
/// may be loaded from it. `path` is for messages.
void write_member(const File& archive, caffe2::serialize::PyTorchStreamReader& reader,
                  const Member& member, const Descriptor& file, const fs::path& path) {
  if (lseek(file.get(), 0, SEEK_SET) != 0) cannot_write(path);
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

/// The packages that this process has unpacked, by content.
class Registry {
 public:
  /// The libraries of a package, by place. They are loaded once, from files that need no name.
  struct Slot {
    std::map<fs::path, Descriptor> libraries;
    std::size_t users = 0;
  };

  pid_t owner() const { return owner_; }

  /// Returns the path for a new folder.
  fs::path new_folder() {
    if (!folder_) folder_.emplace();
    return folder_->path() / std::to_string(folders_++);
  }

  void remove(const fs::path& folder) noexcept {
    std::error_code ignored;
    if (owner_ != getpid() || !folder_) return;
    fs::remove_all(folder, ignored);
    if (fs::is_empty(folder_->path(), ignored)) folder_.reset();
  }

  Slot& acquire(const fs::path& package, const fs::path& folder) {
    const File archive(package);
    const auto members = read_directory(archive);
    const auto reader = open_archive(package, ErrorKind::artifact);
    Slot& slot = slots_[content_of(members)];
    for (const Member& member : members) {
      const fs::path place = place_of(member);
      if (place.empty() || is_mapped(member, members)) continue;
      const fs::path path = folder / place;
      const auto known = slot.libraries.find(place);
      if (known != slot.libraries.end()) {
        if (slot.users == 0) write_member(archive, *reader, member, known->second, path);
        if (link(known->second, path)) continue;
      }
      Descriptor file = create(path);
      write_member(archive, *reader, member, file, path);
      if (path.extension() == ".so") slot.libraries.insert_or_assign(place, std::move(file));
    }
    ++slot.users;
    return slot;
  }

  void release(Slot& slot) noexcept {
    if (--slot.users > 0 || owner_ != getpid()) return;
    try {
      for (const auto& [ignored, library] : slot.libraries) drop_weights(library.get());
    } catch (const std::exception&) {  // the weights are kept
    }
  }

  void discard() noexcept { folder_.reset(); }

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

  /// Makes a link to a file without a name. The system recognizes it as the library that it has
  /// loaded. Returns false if that is not possible, as without /proc.
  static bool link(const Descriptor& library, const fs::path& path) {
    std::error_code failed;
    fs::create_directories(path.parent_path(), failed);
    fs::create_symlink("/proc/self/fd/" + std::to_string(library.get()), path, failed);
    if (fs::exists(path, failed)) return true;
    fs::remove(path, failed);
    return false;
  }

  pid_t owner_ = getpid();
  std::optional<Folder> folder_;  // while a package is being loaded
  std::size_t folders_ = 0;
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

class UnpackedFiles final : public Unpacked {
 public:
  UnpackedFiles(std::shared_ptr<Registry> registry, const fs::path& package)
      : registry_(std::move(registry)), folder_(registry_->new_folder()) {
    try {
      slot_ = &registry_->acquire(package, folder_);
    } catch (...) {
      registry_->remove(folder_);
      throw;
    }
  }
  ~UnpackedFiles() override {
    const std::lock_guard lock(registering());
    registry_->remove(folder_);
    registry_->release(*slot_);
  }
  UnpackedFiles(const UnpackedFiles&) = delete;
  UnpackedFiles& operator=(const UnpackedFiles&) = delete;

  const fs::path& folder() const override { return folder_; }

  void remove_folder() noexcept override {
    const std::lock_guard lock(registering());
    registry_->remove(folder_);
  }

 private:
  std::shared_ptr<Registry> registry_;
  fs::path folder_;
  Registry::Slot* slot_ = nullptr;
};

}  // namespace

std::unique_ptr<Unpacked> unpack(const fs::path& package) {
  const std::lock_guard lock(registering());
  auto& shared = registry();
  if (shared == nullptr || shared->owner() != getpid()) {
    sweep_unpacked();
    shared = std::make_shared<Registry>();
  }
  return std::make_unique<UnpackedFiles>(shared, package);
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
