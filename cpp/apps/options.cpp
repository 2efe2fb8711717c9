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
    "Exit codes: 0 success, 1 lost parity or another failure, 2 wrong usage.";

std::string finite(const std::string& text) {
  double value = 0;
  const bool is_number = CLI::detail::lexical_cast(text, value);
  if (is_number && std::isfinite(value) && value >= 0) return "";
  return text + " is not a finite number of at least 0";
}

std::string hash(std::string& text) {
  text = CLI::detail::to_lower(text);
  const bool is_hash = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash && text.size() == 64 ? "" : "not the 64 hexadecimal digits that sha256sum prints";
}

/// The CLI11 definition of the command line. Parsed values go into `options` and the members.
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
    add_profile();
    add_session();
  }

  CLI::App& app() { return app_; }

  /// The parsed subcommand, or null if the command line ends before one.
  const CLI::App* command() const {
    const auto taken = app_.get_subcommands();
    return taken.empty() ? nullptr : taken.front();
  }

  /// Fills the fields that depend on several options.
  void finish() {
    if (artifact_.empty()) throw Error(ErrorKind::usage, "ARTIFACT is empty: give a file");
    options_.artifact = artifact_;
    options_.golden =
        golden_.empty() ? golden_of(options_.artifact) : std::filesystem::path(golden_);
    options_.has_default_golden = golden_.empty();
    options_.inputs.assign(inputs_.begin(), inputs_.end());
    options_.outputs = outputs_;
    options_.trace = trace_;
    options_.beside = beside_;
    options_.open.operators.assign(libraries_.begin(), libraries_.end());
  }

 private:
  CLI::App* add_command(const char* name, const char* description) {
    CLI::App* command = app_.add_subcommand(name, description);
    command->usage(std::string("Usage: exporter-run ") + name + " ARTIFACT [OPTIONS]");
    command
        ->add_option("ARTIFACT", artifact_,
                     "a .pt (TorchScript) or .pt2 (AOTInductor or torch.export) file")
        ->required()
        ->type_name("");
    command
        ->add_option("--ops-lib", libraries_,
                     "a library with operators outside torch, such as torchvision's; may be "
                     "repeated")
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return command;
  }

  /// Adds a command that loads the model, with the options common to all of these.
  CLI::App* add_running(const char* name, const char* description) {
    CLI::App* command = add_command(name, description);
    command
        ->add_option("--device", options_.open.device,
                     "where to run (default: the contract's device)")
        ->type_name("cpu|cuda|cuda:N");
    add_number(command, "--threads", options_.threads, 1, kMaxThreads,
               "threads inside one operator (default: torch's)");
    add_number(command, "--cuda-graphs", options_.open.cuda_graphs, 0, kMaxGraphs,
               "shapes to capture into CUDA graphs on a GPU; 0 disables capture (default: 8)");
    command->add_flag("--huge-pages", options_.open.huge_pages,
                      "on a CPU: copy a compiled package's weights into huge pages");
    command
        ->add_option(
            "--sha256", options_.open.sha256,
            "expected SHA-256 of the artifact (default: from the SHA256SUMS file beside it)")
        ->type_name("HASH")
        ->transform(CLI::Validator(hash, ""));
    return command;
  }

  void add_golden(CLI::App* command) {
    command
        ->add_option("--golden", golden_, "the golden (default: golden.safetensors in the bundle)")
        ->type_name("FILE");
  }

  template <typename Number>
  static CLI::Option* add_number(CLI::App* command, const char* name, Number& number, int min,
                                 int max, const char* description) {
    return command->add_option(name, number, description)
        ->type_name("N")
        ->check(CLI::Range(min, max).description(""));
  }

  void add_info() {
    CLI::App* command =
        add_command("info", "Show an artifact's kind and its input and output tensors.");
    command->add_flag("--json", options_.json, "print JSON");
  }

  void add_verify() {
    CLI::App* command = add_running("verify", "Compare an artifact's outputs with its golden.");
    add_golden(command);
    const CLI::Validator tolerance([](std::string& text) { return finite(text); }, "");
    command->add_option("--rtol", options_.rtol, "relative tolerance (default: the golden's)")
        ->type_name("X")
        ->check(tolerance);
    command->add_option("--atol", options_.atol, "absolute tolerance (default: the golden's)")
        ->type_name("X")
        ->check(tolerance);
    command->add_flag("--verbose", options_.verbose, "print every output of every case");
    command->add_flag("--json", options_.json, "print JSON");
    command->footer(
        "Prints the worst case of each output and every FAIL. Exits with 0 if no output is FAIL, "
        "with 1 otherwise. Requires the artifact's SHA-256, from the SHA256SUMS file beside it, as "
        "in every bundle, or from --sha256.");
  }

  void add_bench() {
    CLI::App* command = add_running("bench", "Time an artifact on the first case of its golden.");
    add_golden(command);
    add_number(command, "--warmup", options_.warmup, 1, 86'400,
               "maximum seconds of warm-up (default: 10)");
    add_number(command, "--windows", options_.windows, 1, 1'000'000,
               "windows to time (default: 5)");
    add_number(command, "--runs", options_.runs, 1, 1'000'000,
               "calls in each window (default: 50)");
    add_number(command, "--callers", options_.callers, 1, 1024,
               "threads that call concurrently (default: 1); with several, measures throughput "
               "and latency under load, with the calls of all windows made by each thread");
    add_number(command, "--load", options_.load, 1, 100,
               "percent of the throughput that the callers reach without pauses, which is measured "
               "first; they then call at even intervals, and a call is timed from when it was due")
        ->needs("--callers");
    command
        ->add_option(
            "--beside", beside_,
            "another artifact in a bundle, which as many callers call at the same time, "
            "in the same process; one report follows the other, and --golden and --sha256 are "
            "the first one's")
        ->type_name("FILE")
        ->needs("--callers");
    add_number(command, "--streams", options_.streams, 1, 32,
               "CUDA streams that the callers of an artifact share (default: 1)");
    add_number(command, "--runners", options_.open.runners, 1, kMaxRunners,
               "calls that a compiled package serves concurrently (default: the number of cores on "
               "the CPU, 1 on a GPU)");
    command->add_flag("--json", options_.json, "print JSON, with every sample");
    command->footer(
        "Reports the time of loading and of the first call, warms up until the median is stable, "
        "then times windows of single, synchronised calls.");
  }

  void add_run() {
    CLI::App* command = add_running("run", "Run an artifact once, or in a stream.");
    command
        ->add_option(
            "--inputs", inputs_,
            "a safetensors file with the contract's input names; an omitted state.NAME is the "
            "initial state. May be repeated if the artifact has a state: each file is one call of "
            "a stream, without state.NAME")
        ->required()
        ->type_name("FILE")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command
        ->add_option(
            "--outputs", outputs_,
            "the safetensors file to write, with the contract's output names; for a stream, "
            "0.NAME, 1.NAME and so on")
        ->required()
        ->type_name("FILE");
  }

  void add_profile() {
    CLI::App* command =
        add_running("profile", "Time each node of an exported program, and count its memory.");
    command->remove_option(command->get_option("--cuda-graphs"));
    command->remove_option(command->get_option("--huge-pages"));
    add_golden(command);
    command
        ->add_option("--inputs", inputs_,
                     "a safetensors file with the contract's input names (default: the first case "
                     "of the golden, or zeros if there is no golden)")
        ->type_name("FILE")
        ->expected(1);
    add_number(command, "--runs", options_.runs, 1, 1'000'000,
               "calls, of which the median is shown (default: 50)");
    add_number(command, "--top", options_.top, 0, 1'000'000,
               "nodes to print, the slowest first; 0 prints all in order (default: 20)");
    command->add_option("--trace", trace_, "write the nodes as a Chrome trace, for Perfetto")
        ->type_name("FILE");
    command->add_flag("--json", options_.json, "print JSON, with every node");
    command->footer(
        "A node's time is its own, without the nodes inside it; on a GPU the host waits after each "
        "node. Its memory is the most that it allocated above what was held before.");
  }

  void add_session() {
    CLI::App* command = add_running(
        "session", "Serve requests from standard input, with one JSON answer per line.");
    add_golden(command);
    command->footer("Requests: `check`, `time N [CASE]`, `quit`.");
  }

  Options& options_;
  std::string artifact_;
  std::string golden_;
  std::string outputs_;
  std::string trace_;
  std::string beside_;
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
                  "unknown command " + std::string(argv[1]) + "; see exporter-run --help");
    }
    const std::string command = line.command() == nullptr ? "" : line.command()->get_name() + " ";
    throw Error(ErrorKind::usage,
                std::string(error.what()) + "; see exporter-run " + command + "--help");
  }
  request.command = line.command()->get_name();
  line.finish();
  return request;
}

std::filesystem::path golden_of(const std::filesystem::path& artifact) {
  namespace fs = std::filesystem;
  const auto beside = [](const fs::path& file) {
    const auto folder = fs::absolute(file).parent_path();
    const auto bundle = file.parent_path() / (folder.filename() == "rejected" ? ".." : "");
    return bundle / "golden.safetensors";
  };
  std::error_code failed;
  if (!fs::exists(beside(artifact), failed) && fs::is_symlink(artifact, failed)) {
    const auto target = fs::canonical(artifact, failed);
    if (!failed && fs::exists(beside(target), failed)) return beside(target);
  }
  return beside(artifact);
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
