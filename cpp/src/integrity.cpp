#include "integrity.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <system_error>
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
constexpr const char* kRemedy = ": restore an intact copy, or export again";

// Fuzzers generate archives with wrong checksums and must get past these checks.
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

/// Reads the hashes in a SHA256SUMS file, by name.
std::map<std::string, std::string> read_sums(const fs::path& path) {
  return guarded(ErrorKind::artifact, path.string() + " cannot be read", [&] {
    const File file(path);
    if (file.size() > kMaxSums) throw std::runtime_error("it is too large");
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0);
    std::map<std::string, std::string> sums;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const bool valid = line.size() > 66 && line.substr(64, 2) == "  ";
      if (!valid || !is_hash(line.substr(0, 64)) ||
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

/// The hash that a file must have, and the source that says so.
struct ExpectedHash {
  std::string hash;
  std::string source;
};

/// Adds the hash from the SHA256SUMS file in the file's folder, if there is one. Throws if the file
/// is not listed there, unless `may_be_unlisted`.
void add_listed_hash(const fs::path& path, bool may_be_unlisted, ErrorKind kind,
                     std::vector<ExpectedHash>& hashes) {
  const fs::path sums = path.parent_path() / kSums;
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(sums, ignored))) return;
  const auto listed = read_sums(sums);
  const auto found = listed.find(path.filename().string());
  if (found != listed.end()) {
    hashes.push_back({found->second, "the one in " + sums.string()});
  } else if (!may_be_unlisted) {
    throw Error(kind, path.string() + " is not listed in " + sums.string() +
                          ": it was added or renamed later; move it to another folder");
  }
}

std::vector<ExpectedHash> find_hashes(const fs::path& path, ErrorKind kind,
                                      const std::string& sha256) {
  std::vector<ExpectedHash> hashes;
  if (!sha256.empty()) hashes.push_back({sha256, "the given one"});
  std::error_code failed;
  const fs::path itself = fs::canonical(path, failed);
  const bool is_link = fs::is_symlink(fs::symlink_status(path, failed));
  add_listed_hash(itself, !sha256.empty(), kind, hashes);
  // The name of a link may be missing from its folder's sums; if it is listed, it must match.
  if (is_link) add_listed_hash(fs::absolute(path), true, kind, hashes);
  return hashes;
}

/// Computes the CRC-32 of each stretch of stored members in several threads.
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
    try {
      for (std::size_t i = 1; i < count; ++i) {
        threads.emplace_back([&, i] { work(failures[i]); });
      }
    } catch (const std::system_error&) {  // those that could be started share the work
    }
    work(failures[0]);
    for (std::thread& thread : threads) thread.join();
    for (const auto& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  /// Returns the CRC-32 of a member. Members must be taken in the order in which they were added.
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

/// Returns the name without the archive's top folder, as torch's reader expects it.
std::string below_top(const std::string& name) { return name.substr(name.find('/') + 1); }

std::uint32_t inflated_crc(caffe2::serialize::PyTorchStreamReader& reader, const Member& member) {
  const std::string text = read_text(reader, below_top(member.name));
  return crc32(text.data(), text.size());
}

/// Checks all members of an archive, or the one with this name. Returns the first problem, or an
/// empty string.
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
      return "the CRC-32 of " + member.name + " differs from the one in the archive's directory";
    }
  }
  return {};
}

}  // namespace

void require_members(const fs::path& path, ErrorKind kind,
                     caffe2::serialize::PyTorchStreamReader& reader, const std::string& name) {
  if (!kChecks) return;
  const std::string problem = guarded(kind, path.string() + " cannot be read", [&] {
    try {
      return find_problem(path, reader, name);
    } catch (const std::system_error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {  // torch could open it, so it was a valid archive
      return one_line(error.what());
    }
  });
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
  const auto hashes = find_hashes(path, kind, sha256);
  if (!hashes.empty()) {
    const std::string found =
        guarded(kind, path.string() + " cannot be read", [&] { return hash(File(path)); });
    for (const ExpectedHash& expected : hashes) {
      if (found == expected.hash) continue;
      altered(kind, path, "its SHA-256 is " + found + ", not " + expected.source);
    }
    return;
  }
  if (insist) {
    throw Error(kind, "the expected SHA-256 of " + path.string() + " is not known: there is no " +
                          std::string(kSums) + " beside it; give --sha256 HASH");
  }
  if (kind == ErrorKind::golden) return;  // safetensors has no checksums
  const auto reader = open_archive(path, kind);
  require_members(path, kind, *reader);
}

}  // namespace exporter
