#pragma once

namespace exporter {

// While a compiled package is loaded, or open on a GPU, it is unpacked in a per-process folder
// named exporter-package-* below $TMPDIR or /tmp.

/// Removes the folders left by processes of this user that have ended, such as killed ones. Opening
/// a package does this too. Never throws; a folder that cannot be removed stays.
void sweep_unpacked() noexcept;

/// Removes this process's folder. For a process about to end without running destructors, for
/// example by a signal. Afterwards GPU kernels of open packages that have not run yet cannot run. A
/// package that is opened later is unpacked into a new folder. Does nothing if another thread
/// unpacks a package for more than two seconds.
void discard_unpacked() noexcept;

}  // namespace exporter
