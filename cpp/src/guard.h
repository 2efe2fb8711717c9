#pragma once

#include <c10/util/Exception.h>
#include <exporter/error.h>

#include <string>
#include <string_view>

namespace exporter {

/// The first line that says something of a message of torch's: no backtrace, no "Exception raised
/// from", no TorchScript stack. The last line for a TorchScript error, whose first lines are a
/// stack.
std::string one_line(std::string_view message);

/// Calls `action`; whatever it throws becomes an Error of this kind whose message starts with
/// `what`. An Error passes through unchanged.
template <typename Action>
auto guarded(ErrorKind kind, std::string_view what, Action&& action) {
  const auto wrap = [&](std::string_view cause) {
    return Error(kind, std::string(what) + ": " + one_line(cause));
  };
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw wrap(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw wrap(error.what());
  }
}

}  // namespace exporter
