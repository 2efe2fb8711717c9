// A session holds one loaded artifact and answers requests (docs/formats.md, session protocol 1).

#include <exporter/error.h>
#include <exporter/golden.h>
#include <exporter/threads.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "check.h"
#include "commands.h"
#include "measure.h"
#include "printable.h"

namespace exporter::app {
namespace {

using nlohmann::ordered_json;

constexpr int kProtocol = 1;

/// The output of the protocol. Redirects standard output to standard error, so that nothing a model
/// or a library prints comes between the answers.
class Channel {
 public:
  Channel() : out_(fdopen(dup(STDOUT_FILENO), "w")) {
    if (out_ == nullptr) throw Error(ErrorKind::io, "standard output cannot be written");
    dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ~Channel() { std::fclose(out_); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Writes one answer. Returns false if the reader has closed the pipe.
  bool send(const ordered_json& answer) {
    const auto line = dumped(answer) + "\n";
    std::fputs(line.c_str(), out_);
    return std::fflush(out_) == 0;
  }

 private:
  std::FILE* out_;
};

ordered_json to_json(ErrorKind kind, const std::string& message) {
  return {{"event", "error"}, {"kind", to_string(kind)}, {"message", message}, {"remedy", ""}};
}

/// Whether SIGTERM arrived, and a pipe that then wakes the wait for a request. If the signal killed
/// the process, the files that torch unpacked would stay in the temporary directory.
volatile std::sig_atomic_t terminated = 0;
int termination[2] = {-1, -1};

void on_termination(int /*signal*/) {
  const int saved = errno;
  terminated = 1;
  [[maybe_unused]] const auto written = write(termination[1], "", 1);
  errno = saved;
}

/// Makes SIGTERM end the session after the current request. A second SIGTERM kills the process.
void catch_signals() {
  if (pipe2(termination, O_CLOEXEC) != 0) throw std::runtime_error("cannot create a pipe");
  struct sigaction action{};
  action.sa_handler = on_termination;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // writing to a closed pipe returns an error instead
}

/// The lines of standard input.
class Requests {
 public:
  /// Returns the next line, or nothing at the end of input or after SIGTERM.
  std::optional<std::string> next() {
    while (terminated == 0) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) return take(end);
      if (!fill()) return buffer_.empty() ? std::nullopt : std::optional(take(buffer_.size()));
    }
    return std::nullopt;
  }

 private:
  std::string take(std::size_t size) {
    std::string line = buffer_.substr(0, size);
    buffer_.erase(0, size + 1);
    return line;
  }

  /// Waits for more input. Returns false at the end of input.
  bool fill() {
    pollfd sources[] = {{STDIN_FILENO, POLLIN, 0}, {termination[0], POLLIN, 0}};
    while (poll(sources, 2, -1) < 0) {
      if (errno != EINTR) return false;
    }
    if (sources[1].revents != 0) return true;  // `next` checks `terminated`
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  std::string buffer_;
};

class Session {
 public:
  explicit Session(const Options& options)
      : golden_(read_golden(options)), artifact_(open(options)) {
    placed(golden_.cases.front().name);
  }

  ordered_json ready() const {
    return {{"event", "ready"},     {"protocol", kProtocol},
            {"language", "native"}, {"device", artifact_.device().is_cpu() ? "cpu" : "cuda"},
            {"load_s", load_s_},    {"provider", artifact_.execution_mode()}};
  }

  ordered_json answer(const std::string& request) {
    if (request == "check") {
      auto cases = app::to_json(check(artifact_, golden_));
      return {{"event", "check"},
              {"cases", std::move(cases)},
              {"provider", artifact_.execution_mode()},
              {"peak_rss_mb", peak_rss_mb()}};
    }
    if (request.starts_with("time ")) {
      const auto space = request.find(' ', 5);
      const auto count = request.substr(5, space == std::string::npos ? space : space - 5);
      const int runs = parse_count("time", count, 1, 10'000'000);
      const auto& inputs = placed(space == std::string::npos ? golden_.cases.front().name
                                                             : request.substr(space + 1));
      auto samples = time_runs(artifact_, inputs, runs);
      return {{"event", "time"},
              {"samples_ms", std::move(samples)},
              {"provider", artifact_.execution_mode()},
              {"peak_rss_mb", peak_rss_mb()}};
    }
    throw Error(ErrorKind::usage, "request `" + request + "` is not check, time N [CASE] or quit");
  }

 private:
  Artifact open(const Options& options) {
    const auto start = std::chrono::steady_clock::now();
    Artifact artifact = Artifact::open(options.artifact, options.open);
    load_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return artifact;
  }

  /// Returns the inputs of a golden case on the artifact's device.
  const std::vector<at::Tensor>& placed(const std::string& name) {
    const auto found = std::ranges::find(golden_.cases, name, &GoldenCase::name);
    if (found == golden_.cases.end()) {
      throw Error(ErrorKind::usage, "the golden has no case `" + name + "`");
    }
    auto [place_of, is_new] = placed_.try_emplace(name);
    if (is_new) place_of->second = place(artifact_, found->inputs);
    return place_of->second;
  }

  double load_s_ = 0;
  Golden golden_;
  Artifact artifact_;
  std::map<std::string, std::vector<at::Tensor>> placed_;
};

/// Answers requests until `quit`, the end of input or SIGTERM. The answer to a failed request is an
/// error.
void serve(Session& session, Channel& channel) {
  Requests requests;
  for (auto request = requests.next(); request && *request != "quit"; request = requests.next()) {
    ordered_json answer;
    try {
      answer = session.answer(*request);
    } catch (const Error& error) {
      answer = to_json(error.kind(), error.what());
    } catch (const std::exception& error) {
      answer = to_json(ErrorKind::runtime, error.what());
    }
    if (!channel.send(answer)) return;
  }
}

/// Reports a failure before `ready`, in the protocol and on standard error. Returns the exit code.
int give_up(Channel& channel, ErrorKind kind, const std::string& message) {
  channel.send(to_json(kind, message));
  std::fprintf(stderr, "exporter-run: %s\n", printable(message).c_str());
  return kind == ErrorKind::usage ? 2 : 1;
}

}  // namespace

int session(int argc, char** argv) {
  Channel channel;
  try {
    const auto [command, options, text] = parse(argc, argv);
    if (!text.empty()) {
      std::fputs(text.c_str(), stderr);
      return 0;
    }
    if (options.threads > 0) set_threads(options.threads);
    catch_signals();
    Session session(options);
    if (channel.send(session.ready())) serve(session, channel);
    return 0;
  } catch (const Error& error) {
    return give_up(channel, error.kind(), error.what());
  } catch (const std::exception& error) {
    return give_up(channel, ErrorKind::runtime, error.what());
  }
}

}  // namespace exporter::app
