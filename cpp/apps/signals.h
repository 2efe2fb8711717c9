#pragma once

namespace exporter::app {

/// Ignores SIGXFSZ, so that writing beyond a limit on file sizes returns an error, and makes SIGINT
/// and SIGHUP, and SIGTERM unless `except_termination`, remove the unpacked folder before they end
/// the process. Call it before any thread starts, because threads inherit the signal mask.
void tidy_on_signals(bool except_termination);

}  // namespace exporter::app
