#pragma once

#include <doctest/doctest.h>
#include <exporter/error.h>

#include <filesystem>
#include <functional>
#include <string>

/// What the tests share; `main` is in support.cpp.
namespace support {

namespace fs = std::filesystem;

/// The words on the command line before doctest's own options: the folder of the fixtures, a
/// library of operators, and the table of contracts that Python's tests read too.
const fs::path& argument(std::size_t index);
inline const fs::path& fixtures() { return argument(0); }
inline const fs::path& operators() { return argument(1); }
inline const fs::path& contracts() { return argument(2); }

/// A folder of this process, which is $TMPDIR and gone at its end.
const fs::path& scratch();

/// What is wrong unless `action` throws an Error of this kind whose message is one line that
/// contains `part`; empty otherwise.
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
