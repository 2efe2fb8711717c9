#pragma once

#include <exporter/error.h>

#include <cstdio>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// Just enough of a test framework: checks throw, `run` reports every test by name.
namespace testing {

inline void check(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <typename A, typename B>
void check_equal(const A& actual, const B& expected, const char* file, int line) {
  if (actual == expected) return;
  std::ostringstream text;
  text << file << ":" << line << ": got `" << actual << "`, expected `" << expected << "`";
  throw std::logic_error(text.str());
}

/// Checks that `action` throws an Error of this kind whose message contains `part`.
inline void check_error(exporter::ErrorKind kind, const std::string& part,
                        const std::function<void()>& action, const char* file, int line) {
  const std::string where = std::string(file) + ":" + std::to_string(line) + ": ";
  try {
    action();
  } catch (const exporter::Error& error) {
    const std::string message = error.what();
    if (error.kind() == kind && message.find(part) != std::string::npos &&
        message.find('\n') == std::string::npos) {
      return;
    }
    throw std::logic_error(where + "another error (" + to_string(error.kind()) + "): " + message);
  }
  throw std::logic_error(where + "nothing was thrown");
}

using Tests = std::vector<std::pair<const char*, std::function<void()>>>;

/// Runs all tests; returns the exit code.
inline int run(const Tests& tests) {
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      test();
      std::printf("ok    %s\n", name);
    } catch (const std::exception& error) {
      std::printf("FAIL  %s: %s\n", name, error.what());
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace testing

#define EXPECT(condition) testing::check((condition), #condition, __FILE__, __LINE__)
#define EXPECT_EQUAL(actual, expected) \
  testing::check_equal((actual), (expected), __FILE__, __LINE__)
#define EXPECT_ERROR(kind, part, action) \
  testing::check_error(exporter::ErrorKind::kind, (part), [&] { action; }, __FILE__, __LINE__)
