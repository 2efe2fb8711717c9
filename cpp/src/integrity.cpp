#include "integrity.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "archive.h"
#include "crc32.h"
#include "file.h"
#include "guard.h"
#include "sha256.h"
#include "zip.h"

namespace exporter {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSums = "SHA256SUMS";
constexpr std::uint64_t kMaxSums = std::uint64_t{1} << 24;
constexpr std::size_t kPiece = std::size_t{1} << 18;        // read at once
constexpr std::uint64_t kStretch = std::uint64_t{1} << 23;  // given to a thread at once
constexpr unsigned kThreads = 8;
constexpr const char* kRemedy = ": take a good copy, or export it again";

// Fuzzers draw archives whose sums are wrong, and mean to reach what lies behind.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr bool kChecks = false;
#else
constexpr bool kChecks = true;
#endif

[[noreturn]] void altered(ErrorKind kind, const fs::path& path, const std::string& how) {
  throw Error(kind, path.string() + " was altered: " + how + kRemedy);
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// The hashes in a SHA256SUMS, by name.
std::map<std::string, std::string> read_sums(const fs::path& path) {
  return guarded(ErrorKind::artifact, path.string() + " cannot be read", [&] {
    const File file(path);
    if (file.size() > kMaxSums) throw std::runtime_error("it is too large");
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0);
    std::map<std::string, std::string> sums;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const bool sound = line.size() > 66 && line.substr(64, 2) == "  ";
      if (!sound || !is_hash(line.substr(0, 64)) ||
          !sums.emplace(line.substr(66), line.substr(0, 64)).second) {
        throw std::runtime_error("line " + std::to_string(sums.size() + 1) + " is broken");
      }
    }
    return sums;
  });
}

std::string hash(const File& file) {
  Sha256 sum;
  std::vector<char> piece(kPiece);
  for (std::uint64_t at = 0; at < file.size();) {
    const auto size = std::min<std::uint64_t>(piece.size(), file.size() - at);
    file.read(piece.data(), size, at);
    sum.add(piece.data(), size);
    at += size;
  }
  return sum.finish();
}

/// What says which hash a file has.
struct Promise {
  std::string hash;
  std::string source;
};

/// Adds what a SHA256SUMS in the file's folder says, where there is one.
void add_promise(const fs::path& path, bool is_vouched_for, ErrorKind kind,
                 std::vector<Promise>& promises) {
  const fs::path sums = path.parent_path() / kSums;
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(sums, ignored))) return;
  const auto listed = read_sums(sums);
  const auto found = listed.find(path.filename().string());
  if (found != listed.end()) {
    promises.push_back({found->second, sums.string()});
  } else if (!is_vouched_for) {
    throw Error(kind, path.string() + " is not in " + sums.string() +
                          ": it was added or renamed since; move it out of that folder");
  }
}

std::vector<Promise> find_promises(const fs::path& path, ErrorKind kind,
                                   const std::string& sha256) {
  std::vector<Promise> promises;
  if (!sha256.empty()) promises.push_back({sha256, "the hash that was asked for"});
  std::error_code failed;
  const fs::path itself = fs::canonical(path, failed);
  const bool is_link = fs::is_symlink(fs::symlink_status(path, failed));
  add_promise(itself, !sha256.empty(), kind, promises);
  // A link may have a name that its folder's sums do not list; what they do list has to be right.
  if (is_link) add_promise(fs::absolute(path), true, kind, promises);
  return promises;
}

/// CRC-32 of each stretch of stored members, computed by several threads.
class Stretches {
 public:
  explicit Stretches(const File& file) : file_(file) {}

  void add(const Member& member) {
    for (std::uint64_t at = 0; at < member.size; at += kStretch) {
      parts_.push_back({member.offset + at, std::min(kStretch, member.size - at), 0});
    }
  }

  void compute() {
    const auto most = std::min<std::size_t>(parts_.size(), kThreads);
    const std::size_t count = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1,
                                                      std::max<std::size_t>(most, 1));
    std::vector<std::exception_ptr> failures(count);
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < count; ++i) {
      threads.emplace_back([&, i] { work(failures[i]); });
    }
    work(failures[0]);
    for (std::thread& thread : threads) thread.join();
    for (const auto& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  /// Of the member that was added next.
  std::uint32_t take(const Member& member) {
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < member.size; at += kStretch, ++taken_) {
      crc = combine_crc32(crc, parts_[taken_].crc, parts_[taken_].size);
    }
    return crc;
  }

 private:
  struct Part {
    std::uint64_t offset;
    std::uint64_t size;
    std::uint32_t crc;
  };

  void work(std::exception_ptr& failure) try {
    std::vector<char> piece(kPiece);
    for (std::size_t i = next_++; i < parts_.size(); i = next_++) {
      Part& part = parts_[i];
      for (std::uint64_t at = 0; at < part.size; at += piece.size()) {
        const auto size = std::min<std::uint64_t>(piece.size(), part.size - at);
        file_.read(piece.data(), size, part.offset + at);
        part.crc = crc32(piece.data(), size, part.crc);
      }
    }
  } catch (...) {
    failure = std::current_exception();
  }

  const File& file_;
  std::vector<Part> parts_;
  std::atomic<std::size_t> next_ = 0;
  std::size_t taken_ = 0;
};

/// The name without the archive's top folder, as torch's reader wants it.
std::string below_top(const std::string& name) { return name.substr(name.find('/') + 1); }

std::uint32_t inflated_crc(caffe2::serialize::PyTorchStreamReader& reader, const Member& member) {
  const std::string text = read_text(reader, below_top(member.name));
  return crc32(text.data(), text.size());
}

/// What is wrong with the members of an archive, or with the one of this name; empty where all is
/// right.
std::string find_problem(const fs::path& path, caffe2::serialize::PyTorchStreamReader& reader,
                         const std::string& name) {
  const File file(path);
  auto members = read_directory(file);
  std::erase_if(members, [&](const Member& member) {
    return !name.empty() && below_top(member.name) != name;
  });
  Stretches stretches(file);
  for (const Member& member : members) {
    if (!member.compressed) stretches.add(member);
  }
  stretches.compute();
  for (const Member& member : members) {
    const auto crc = member.compressed ? inflated_crc(reader, member) : stretches.take(member);
    if (crc != member.crc) {
      return "the CRC-32 of " + member.name + " is not the one in its directory";
    }
  }
  return {};
}

}  // namespace

void require_members(const fs::path& path, ErrorKind kind,
                     caffe2::serialize::PyTorchStreamReader& reader, const std::string& name) {
  if (!kChecks) return;
  std::string problem;
  try {
    problem = find_problem(path, reader, name);
  } catch (const std::exception& error) {  // torch could read it, so it was an archive once
    problem = one_line(error.what());
  }
  if (!problem.empty()) altered(kind, path, problem);
}

void require_unaltered(const fs::path& path, ErrorKind kind, const std::string& sha256,
                       bool insist) {
  if (!sha256.empty() && !is_hash(sha256)) {
    throw Error(ErrorKind::usage,
                "sha256 " + sha256 + " is not 64 hexadecimal digits in lower case");
  }
  require_file(path, kind);
  if (!kChecks) return;
  const auto promises = find_promises(path, kind, sha256);
  if (!promises.empty()) {
    const std::string found =
        guarded(kind, path.string() + " cannot be read", [&] { return hash(File(path)); });
    for (const Promise& promise : promises) {
      if (found == promise.hash) continue;
      altered(kind, path, "its SHA-256 is " + found + ", not that of " + promise.source);
    }
    return;
  }
  if (insist) {
    throw Error(kind, "nobody says what " + path.string() + " should be: there is no " +
                          std::string(kSums) + " beside it; give --sha256 HASH");
  }
  if (kind == ErrorKind::golden) return;  // safetensors has no checksums
  const auto reader = open_archive(path, kind);
  require_members(path, kind, *reader);
}

}  // namespace exporter
