#pragma once

#include "options.h"

namespace exporter::app {

// One function a subcommand, each in the file of its name. They return the exit code, and throw
// Error for what stops them.

int info(const Options& options);
int verify(const Options& options);
int bench(const Options& options);
int run(const Options& options);

/// Speaks the protocol of docs/formats.md. Reads the command line itself, for what is wrong with it
/// has to be reported in the protocol too. Throws nothing.
int session(int argc, char** argv);

}  // namespace exporter::app
