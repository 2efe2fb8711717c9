#include <exporter/error.h>
#include <exporter/threads.h>
#include <exporter/unpacked.h>
#include <exporter/version.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "commands.h"
#include "help.h"
#include "printable.h"
#include "signals.h"

namespace exporter::app {
namespace {

using Action = int (*)(const Options&);

int dispatch(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    std::fputs(help("").c_str(), stdout);
    return 0;
  }
  if (name == "--version") {
    std::printf("exporter-run %s (LibTorch %s)\n", version(), torch_version());
    return 0;
  }
  tidy_on_signals(/*except_termination=*/name == "session");
  sweep_unpacked();
  if (name == "session") return session(argc - 1, argv + 1);
  const std::map<std::string, Action> actions = {
      {"info", info}, {"verify", verify}, {"bench", bench}, {"run", run}};
  const auto action = actions.find(name);
  if (action == actions.end()) {
    throw Error(ErrorKind::usage, name.empty() ? "no command given; see exporter-run --help"
                                               : name + " is no command; see exporter-run --help");
  }
  const Options options = parse_options(argc - 1, argv + 1);
  if (options.help) {
    std::fputs(help(name).c_str(), stdout);
    return 0;
  }
  if (options.threads > 0) set_threads(options.threads);
  return action->second(options);
}

}  // namespace
}  // namespace exporter::app

int main(int argc, char** argv) {
  try {
    const int code = exporter::app::dispatch(argc, argv);
    if (std::fflush(stdout) == 0) return code;
    std::fprintf(stderr, "exporter-run: standard output cannot be written\n");
    return 1;
  } catch (const exporter::Error& error) {
    std::fprintf(stderr, "exporter-run: %s\n", exporter::app::printable(error.what()).c_str());
    return error.kind() == exporter::ErrorKind::usage ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exporter-run: unexpected failure: %s\n",
                 exporter::app::printable(error.what()).c_str());
    return 1;
  }
}
