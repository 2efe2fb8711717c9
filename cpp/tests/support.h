#pragma once

#include <doctest/doctest.h>
#include <exporter/error.h>

#include <filesystem>
#include <functional>
#include <string>

/// Helpers for the tests; `main` is in support.cpp.
namespace support {

namespace fs = std::filesystem;

/// Returns a command-line argument before doctest's options: the folder of the fixtures, a library
/// of operators, or the table of contracts that Python's tests read too.
const fs::path& argument(std::size_t index);
inline const fs::path& fixtures() { return argument(0); }
inline const fs::path& operators() { return argument(1); }
inline const fs::path& contracts() { return argument(2); }

/// Returns this process's temporary folder, which is also $TMPDIR and is removed at the end.
const fs::path& scratch();

/// Returns an empty string if `action` throws an Error of this kind whose message is one line that
/// contains `part`, and a description of the difference otherwise.
std::string mismatch(exporter::ErrorKind kind, const std::string& part,
                     const std::function<void()>& action);

}  // namespace support

/// Checks that an expression throws an Error of this kind whose message contains `part`.
#define CHECK_ERROR(kind, part, ...)                                                        \
  do {                                                                                      \
    const std::string wrong_ =                                                              \
        support::mismatch(exporter::ErrorKind::kind, (part), [&] { (void)(__VA_ARGS__); }); \
    CHECK_MESSAGE(wrong_.empty(), wrong_);                                                  \
  } while (false)
