#include <exporter/error.h>
#include <exporter/threads.h>
#include <exporter/unpacked.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <string_view>

#include "commands.h"
#include "printable.h"
#include "signals.h"

namespace exporter::app {
namespace {

using Action = int (*)(const Options&);

int dispatch(int argc, char** argv) {
  const bool is_session = argc > 1 && std::string_view(argv[1]) == "session";
  const Request request = is_session ? Request{} : parse(argc, argv);
  if (!request.text.empty()) {
    std::fputs(request.text.c_str(), stdout);
    return 0;
  }
  tidy_on_signals(/*except_termination=*/is_session);
  sweep_unpacked();
  if (is_session) return session(argc, argv);
  const std::map<std::string, Action> actions = {
      {"info", info}, {"verify", verify}, {"bench", bench}, {"run", run}, {"profile", profile}};
  if (request.options.threads > 0) set_threads(request.options.threads);
  return actions.at(request.command)(request.options);
}

}  // namespace
}  // namespace exporter::app

namespace {

/// Runs the command and reports its errors; returns the exit code.
int run_command(int argc, char** argv) {
  try {
    const int code = exporter::app::dispatch(argc, argv);
    if (std::fflush(stdout) == 0) return code;
    std::fprintf(stderr, "exporter-run: cannot write to standard output\n");
    return 1;
  } catch (const exporter::Error& error) {
    std::fprintf(stderr, "exporter-run: %s\n", exporter::app::printable(error.what()).c_str());
    return error.kind() == exporter::ErrorKind::usage ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exporter-run: unexpected error: %s\n",
                 exporter::app::printable(error.what()).c_str());
    return 1;
  }
}

}  // namespace

/// Ends without the destructors of LibTorch's static objects, which take a third of the time of a
/// short command.
int main(int argc, char** argv) {
  const int code = run_command(argc, argv);
  std::fflush(nullptr);
#ifdef EXPORTER_SANITIZED
  return code;  // sanitizers report at the normal end
#else
  std::quick_exit(code);
#endif
}
