#pragma once

#include "options.h"

namespace exporter::app {

// One function per subcommand, each in the file of that name. Each returns the exit code and throws
// Error if it cannot finish.

int info(const Options& options);
int verify(const Options& options);
int bench(const Options& options);
int run(const Options& options);
int profile(const Options& options);

/// Serves the session protocol (docs/formats.md). Parses the command line itself, because its
/// errors are reported in the protocol too. Never throws.
int session(int argc, char** argv);

}  // namespace exporter::app
