#pragma once

namespace exporter::app {

/// From here on SIGINT and SIGHUP, and SIGTERM too unless `except_termination`, remove what was
/// unpacked before they end the process, as they would have. Called before there are threads, which
/// take the mask over.
void tidy_on_signals(bool except_termination);

}  // namespace exporter::app
