#define DOCTEST_CONFIG_IMPLEMENT
#include "support.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace support {
namespace {

std::vector<fs::path>& arguments() {
  static std::vector<fs::path> all;
  return all;
}

}  // namespace

const fs::path& argument(std::size_t index) {
  if (index < arguments().size()) return arguments()[index];
  throw std::logic_error("argument " + std::to_string(index + 1) + " is missing");
}

const fs::path& scratch() {
  static const fs::path folder =
      fs::temp_directory_path() / ("exporter-test-" + std::to_string(getpid()));
  return folder;
}

std::string mismatch(exporter::ErrorKind kind, const std::string& part,
                     const std::function<void()>& action) {
  try {
    action();
  } catch (const exporter::Error& error) {
    const std::string message = error.what();
    const bool fits = error.kind() == kind && message.find(part) != std::string::npos &&
                      message.find('\n') == std::string::npos;
    if (fits) return "";
    return std::string("another error (") + to_string(error.kind()) + "): " + message;
  }
  return "expected an error with `" + part + "`, but nothing was thrown";
}

}  // namespace support

int main(int argc, char** argv) {
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) support::arguments().emplace_back(argv[i]);
  std::filesystem::create_directories(support::scratch());
  setenv("TMPDIR", support::scratch().c_str(), 1);
  doctest::Context context(argc, argv);
  const int code = context.run();
  std::filesystem::remove_all(support::scratch());
  return code;
}
