#include <exporter/error.h>

namespace exporter {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::artifact:
      return "artifact";
    case ErrorKind::contract:
      return "contract";
    case ErrorKind::golden:
      return "golden";
    case ErrorKind::io:
      return "io";
    case ErrorKind::out_of_memory:
      return "out_of_memory";
    case ErrorKind::runtime:
      return "runtime";
  }
  return "runtime";
}

Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(message), kind_(kind) {}

}  // namespace exporter
