#include "guard.h"

#include <algorithm>
#include <cctype>

namespace exporter {
namespace {

std::string_view trim(std::string_view text) {
  const auto blank = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Returns the cause in a TorchScript error, which follows the model's stack.
std::string_view after_torchscript_stack(std::string_view message) {
  constexpr std::string_view kErrors[] = {"RuntimeError: ", "Error: "};
  if (!message.starts_with("The following operation failed in the TorchScript")) return message;
  for (std::string_view marker : kErrors) {
    const auto at = message.rfind(marker);
    if (at != std::string_view::npos) return message.substr(at + marker.size());
  }
  return message;
}

}  // namespace

bool is_out_of_memory(std::string_view message) {
  constexpr std::string_view kMessages[] = {
      "std::bad_alloc",                             // operator new
      "CUDA out of memory.",                        // torch's caching allocator
      "CUDA error: out of memory",                  // the CUDA runtime
      "DefaultCPUAllocator: can't allocate memory"  // torch's, on the CPU
  };
  return std::ranges::any_of(kMessages, [&](std::string_view known) {
    return message.find(known) != std::string_view::npos;
  });
}

std::string one_line(std::string_view message) {
  message = trim(after_torchscript_stack(trim(message)));
  message = message.substr(0, message.find("\nException raised from"));
  if (message.find("container_handle_") != std::string_view::npos &&
      message.find("API call failed at") != std::string_view::npos) {
    return "the package's function failed, and wrote the reason to its standard error output";
  }
  message = trim(message.substr(0, message.find('\n')));
  return message.empty() ? "unknown cause" : std::string(message);
}

}  // namespace exporter
