#pragma once

#include <stdexcept>
#include <string>

namespace exporter {

/// Whose fault a failure is. The names are those of the session protocol.
enum class ErrorKind {
  usage,          ///< the caller asked for something that does not exist
  artifact,       ///< the artifact is missing, broken or not for this machine
  contract,       ///< tensors do not fit the artifact's contract
  golden,         ///< a file of tensors is missing, broken or does not fit the artifact
  io,             ///< a file cannot be written
  out_of_memory,  ///< memory ran out, of the machine or of the GPU; less work may still fit
  runtime,        ///< the model failed while it ran
};

/// The kind's name: "usage", "artifact", "contract", "golden", "io", "out_of_memory" or "runtime".
const char* to_string(ErrorKind kind);

/// The only exception that this library throws; std::bad_alloc and what torch throws when memory
/// runs out are of the kind `out_of_memory`. `what()` is one line that names the file, where there
/// is one, and the cause; it holds no backtrace.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace exporter
