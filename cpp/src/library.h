#pragma once

namespace exporter {

/// Frees the disk and memory of the weights inside a package's library, given by a descriptor open
/// for writing. The library cannot run until its file is written again. It stays loaded, because
/// threads that called it hold thread-local data of it. Throws std::exception if the library cannot
/// be read; then it keeps its weights.
void drop_weights(int library);

}  // namespace exporter
