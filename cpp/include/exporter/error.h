#pragma once

#include <stdexcept>
#include <string>

namespace exporter {

/// The category of a failure. The session protocol uses the same names.
enum class ErrorKind {
  usage,          ///< the caller asked for something that does not exist
  artifact,       ///< the artifact is missing, broken or not for this machine
  contract,       ///< tensors do not fit the artifact's contract
  golden,         ///< a file of tensors is missing, broken or does not fit the artifact
  io,             ///< a file cannot be written
  out_of_memory,  ///< the machine or the GPU ran out of memory; a smaller call may fit
  runtime,        ///< the model failed while running
};

/// Returns the kind's name: "usage", "artifact", "contract", "golden", "io", "out_of_memory" or
/// "runtime".
const char* to_string(ErrorKind kind);

/// The only exception that this library throws. std::bad_alloc and torch's out-of-memory errors
/// become the kind `out_of_memory`. `what()` is one line with the file, if there is one, and the
/// cause, without a backtrace.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace exporter
