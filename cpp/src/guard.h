#pragma once

#include <c10/util/Exception.h>
#include <exporter/error.h>

#include <new>
#include <string>
#include <string_view>

namespace exporter {

/// Returns the first meaningful line of a message from torch, without backtrace, "Exception raised
/// from" or TorchScript stack. For a TorchScript error, which starts with a stack, it comes after
/// the stack.
std::string one_line(std::string_view message);

/// Returns whether the message comes from an allocator that ran out of memory. TorchScript and
/// compiled packages pass on only the message, not the type; packages before torch 2.14 not even
/// that.
bool is_out_of_memory(std::string_view message);

/// Calls `action` and returns its result. An exception becomes an Error of this kind, or of the
/// kind out_of_memory if memory ran out, with a message that starts with `what`. An Error passes
/// through unchanged.
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
