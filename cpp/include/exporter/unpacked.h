#pragma once

namespace exporter {

// A compiled package is unpacked into a folder of this process below $TMPDIR, or /tmp, called
// exporter-package-*. The folder goes when the process ends by itself.

/// Removes such folders that processes of this user have left which are no more, as those do that
/// are killed. Opening a package does it too. Throws nothing: what cannot be removed stays.
void sweep_unpacked() noexcept;

/// Removes this process's own folder: for one that is about to end without destructors, by a signal
/// for one. No package can be opened afterwards, and a GPU's kernels that have not run yet cannot.
void discard_unpacked() noexcept;

}  // namespace exporter
