#pragma once

namespace exporter {

/// Loads an empty library named libtorch_python.so, unless one of that name is loaded. That
/// satisfies libraries that link it without using it. A symbol that is used stays missing, and the
/// dynamic linker reports it.
void stand_in_for_libtorch_python();

}  // namespace exporter
