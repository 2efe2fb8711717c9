#include "options.h"

#include <exporter/error.h>
#include <exporter/threads.h>
#include <exporter/version.h>

#include <CLI/CLI11.hpp>
#include <charconv>
#include <cmath>

namespace exporter::app {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 success, 1 lost parity or a failure, 2 wrong usage.";

std::string finite(const std::string& text) {
  double value = 0;
  const bool is_number = CLI::detail::lexical_cast(text, value);
  if (is_number && std::isfinite(value) && value >= 0) return "";
  return text + " is not a number of 0 or more";
}

std::string hash(std::string& text) {
  text = CLI::detail::to_lower(text);
  const bool is_hash = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash && text.size() == 64 ? "" : "not the 64 hexadecimal digits that sha256sum prints";
}

/// The command line as CLI11 reads it. What it reads goes into `options` and the members.
class CommandLine {
 public:
  explicit CommandLine(Options& options) : options_(options) {
    app_.set_version_flag("--version", std::string("exporter-run ") + version() + " (LibTorch " +
                                           torch_version() + ")");
    app_.require_subcommand(1);
    app_.footer(kExitCodes);
    app_.get_formatter()->column_width(28);
    app_.get_formatter()->label("REQUIRED", "(required)");
    app_.usage("Usage: exporter-run COMMAND ARTIFACT [OPTIONS]");
    app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_info();
    add_verify();
    add_bench();
    add_run();
    add_session();
  }

  CLI::App& app() { return app_; }

  /// The subcommand that was read; none where the command line ends before it.
  const CLI::App* command() const {
    const auto taken = app_.get_subcommands();
    return taken.empty() ? nullptr : taken.front();
  }

  /// What has to be put together of several options.
  void finish() {
    options_.artifact = artifact_;
    options_.golden = golden_.empty() ? options_.artifact.parent_path() / "golden.safetensors"
                                      : std::filesystem::path(golden_);
    options_.inputs.assign(inputs_.begin(), inputs_.end());
    options_.outputs = outputs_;
    options_.open.operators.assign(libraries_.begin(), libraries_.end());
  }

 private:
  CLI::App* add_command(const char* name, const char* description) {
    CLI::App* command = app_.add_subcommand(name, description);
    command->usage(std::string("Usage: exporter-run ") + name + " ARTIFACT [OPTIONS]");
    command
        ->add_option("ARTIFACT", artifact_,
                     "a .pt (TorchScript) or .pt2 (AOTInductor) file of an exporter bundle")
        ->required()
        ->type_name("");
    command
        ->add_option("--ops-lib", libraries_,
                     "a library of operators outside torch's own, such as torchvision's; may be "
                     "repeated")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return command;
  }

  /// What every command takes that loads the model.
  CLI::App* add_running(const char* name, const char* description) {
    CLI::App* command = add_command(name, description);
    command
        ->add_option("--device", options_.open.device,
                     "where to run; the device of the contract unless given")
        ->type_name("cpu|cuda|cuda:N");
    add_number(command, "--threads", options_.threads, 1, kMaxThreads,
               "threads inside one operator; torch's default unless given");
    add_number(command, "--cuda-graphs", options_.open.cuda_graphs, 0, kMaxGraphs,
               "shapes captured into CUDA graphs, on a GPU; 0 is none (8)");
    command
        ->add_option("--sha256", options_.open.sha256,
                     "SHA-256 that the artifact has to have; where it is not given, a SHA256SUMS "
                     "beside it tells")
        ->type_name("HASH")
        ->transform(CLI::Validator(hash, ""));
    return command;
  }

  void add_golden(CLI::App* command) {
    command
        ->add_option("--golden", golden_,
                     "the golden; golden.safetensors beside the artifact unless given")
        ->type_name("FILE");
  }

  template <typename Number>
  static void add_number(CLI::App* command, const char* name, Number& number, int min, int max,
                         const char* description) {
    command->add_option(name, number, description)
        ->type_name("N")
        ->check(CLI::Range(min, max).description(""));
  }

  void add_info() {
    CLI::App* command = add_command("info", "Show what an artifact is and which tensors it takes.");
    command->add_flag("--json", options_.json, "print JSON");
  }

  void add_verify() {
    CLI::App* command = add_running("verify", "Compare an artifact's outputs with its golden.");
    add_golden(command);
    const CLI::Validator tolerance([](std::string& text) { return finite(text); }, "");
    command->add_option("--rtol", options_.rtol, "relative tolerance; the golden's unless given")
        ->type_name("X")
        ->check(tolerance);
    command->add_option("--atol", options_.atol, "absolute tolerance; the golden's unless given")
        ->type_name("X")
        ->check(tolerance);
    command->add_flag("--verbose", options_.verbose, "print every output of every case");
    command->add_flag("--json", options_.json, "print JSON");
    command->footer(
        "Prints the worst case of each output, and all that FAIL. Exits with 0 when every output "
        "is exact, rounding or drift, with 1 when one is FAIL. Somebody has to say the artifact's "
        "SHA-256: the SHA256SUMS beside it, as in every bundle, or --sha256.");
  }

  void add_bench() {
    CLI::App* command = add_running("bench", "Time an artifact on the first case of its golden.");
    add_golden(command);
    add_number(command, "--warmup", options_.warmup, 1, 86'400, "seconds to warm up, at most (10)");
    add_number(command, "--windows", options_.windows, 1, 1'000'000, "windows to time (5)");
    add_number(command, "--runs", options_.runs, 1, 1'000'000, "calls in a window (50)");
    add_number(command, "--callers", options_.callers, 1, 1024,
               "threads that call at the same time (1): throughput, and latency under that load, "
               "of all windows' calls by each");
    add_number(command, "--streams", options_.streams, 1, 32,
               "of a GPU, that the callers share (1)");
    add_number(command, "--runners", options_.open.runners, 1, kMaxRunners,
               "calls that a compiled package serves at the same time; on the CPU as many as there "
               "are cores unless given, on a GPU 1");
    command->add_flag("--json", options_.json, "print JSON, with every sample");
    command->footer(
        "Says how long loading and the first call took, warms up until the median settles, then "
        "times windows of single, synchronised calls.");
  }

  void add_run() {
    CLI::App* command = add_running("run", "Run an artifact once, or in a stream.");
    command
        ->add_option(
            "--inputs", inputs_,
            "a safetensors file with the contract's names; state.NAME that is left out is the "
            "initial state. May be repeated where the artifact has a state: the calls of "
            "a stream, without state.NAME")
        ->required()
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command
        ->add_option(
            "--outputs", outputs_,
            "written: a safetensors file with the contract's names; of a stream, 0.NAME, 1.NAME "
            "and so on")
        ->required()
        ->type_name("FILE");
  }

  void add_session() {
    CLI::App* command =
        add_running("session", "Serve requests on standard input, one JSON answer a line.");
    add_golden(command);
    command->footer("Requests: `check`, `time N [CASE]`, `quit`.");
  }

  Options& options_;
  std::string artifact_;
  std::string golden_;
  std::string outputs_;
  std::vector<std::string> inputs_;
  std::vector<std::string> libraries_;
  CLI::App app_{"Runs models that exporter exported, without Python.", "exporter-run"};
};

}  // namespace

Request parse(int argc, const char* const* argv) {
  Request request;
  CommandLine line(request.options);
  try {
    line.app().parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    request.text = line.app().help();
    return request;
  } catch (const CLI::CallForVersion& asked) {
    request.text = asked.what() + std::string("\n");
    return request;
  } catch (const CLI::ParseError& error) {
    if (line.command() == nullptr && argc > 1) {
      throw Error(ErrorKind::usage,
                  std::string(argv[1]) + " is no command; see exporter-run --help");
    }
    const std::string command = line.command() == nullptr ? "" : line.command()->get_name() + " ";
    throw Error(ErrorKind::usage,
                std::string(error.what()) + "; see exporter-run " + command + "--help");
  }
  request.command = line.command()->get_name();
  line.finish();
  return request;
}

Tolerance tolerance_of(const Options& options, Tolerance golden) {
  golden.rtol = options.rtol.value_or(golden.rtol);
  golden.atol = options.atol.value_or(golden.atol);
  return golden;
}

int parse_count(const std::string& what, const std::string& text, int min, int max) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < min || value > max) {
    throw Error(ErrorKind::usage, what + " " + text + " is not a whole number from " +
                                      std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace exporter::app
