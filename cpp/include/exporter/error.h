#pragma once

#include <stdexcept>
#include <string>

namespace exporter {

/// Whose fault a failure is. The names are those of the session protocol.
enum class ErrorKind {
  usage,     ///< the caller asked for something that does not exist
  artifact,  ///< the artifact is missing, broken or not for this machine
  contract,  ///< tensors do not fit the artifact's contract
  golden,    ///< a file of tensors is missing, broken or does not fit the artifact
  runtime,   ///< the model failed while it ran
};

/// The kind's name: "usage", "artifact", "contract", "golden" or "runtime".
const char* to_string(ErrorKind kind);

/// The only exception that this library throws (besides std::bad_alloc). `what()` is one line that
/// names the file, where there is one, and the cause; it holds no backtrace.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace exporter
