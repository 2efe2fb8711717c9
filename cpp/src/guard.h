#pragma once

#include <c10/util/Exception.h>
#include <exporter/error.h>

#include <new>
#include <string>
#include <string_view>

namespace exporter {

/// The first line that says something of a message of torch's: no backtrace, no "Exception raised
/// from", no TorchScript stack. The last line for a TorchScript error, whose first lines are a
/// stack.
std::string one_line(std::string_view message);

/// Whether the message is that of an allocator which had no memory left. TorchScript and compiled
/// packages hand on the message alone, not the type; packages not even that before torch 2.14.
bool is_out_of_memory(std::string_view message);

/// Calls `action`; whatever it throws becomes an Error of this kind whose message starts with
/// `what`, or one of the kind out_of_memory where memory ran out. An Error passes through
/// unchanged.
template <typename Action>
auto guarded(ErrorKind kind, std::string_view what, Action&& action) {
  const auto wrap = [&](std::string_view cause) {
    const ErrorKind found = is_out_of_memory(cause) ? ErrorKind::out_of_memory : kind;
    return Error(found, std::string(what) + ": " + one_line(cause));
  };
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::out_of_memory, std::string(what) + ": out of memory (std::bad_alloc)");
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ErrorKind::out_of_memory,
                std::string(what) + ": " + one_line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    throw wrap(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw wrap(error.what());
  }
}

}  // namespace exporter
