#pragma once

namespace exporter {

/// Loads an empty library of the name libtorch_python.so, unless one of that name is loaded.
/// Whoever needs the name and nothing more is then satisfied; a symbol that is really used stays
/// missing, and the dynamic linker says so.
void stand_in_for_libtorch_python();

}  // namespace exporter
