// Measures the memory of processes that share an artifact: exporter-forked ARTIFACT COUNT opens it,
// forks COUNT processes, lets each run it once, and prints JSON with the sum of their proportional
// set sizes (PSS) and that of the parent, in MB.

#include <exporter/artifact.h>
#include <exporter/threads.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

double pss_mb(pid_t process) {
  std::ifstream lines("/proc/" + std::to_string(process) + "/smaps_rollup");
  for (std::string word; lines >> word;) {
    double kib = 0;
    if (word == "Pss:" && lines >> kib) return kib * 1024 / 1e6;
  }
  throw std::runtime_error("/proc has no PSS of process " + std::to_string(process));
}

/// Runs the artifact in a new process, which stays until it is killed.
pid_t start(const exporter::Artifact& artifact) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    try {
      artifact.run(artifact.contract().example_inputs());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "exporter-forked: %s\n", error.what());
      _exit(1);
    }
    if (write(ends[1], "r", 1) == 1) pause();
    _exit(1);
  }
  close(ends[1]);
  char ready = 0;
  const bool is_ready = child > 0 && read(ends[0], &ready, 1) == 1;
  close(ends[0]);
  if (!is_ready) throw std::runtime_error("a process ended");
  return child;
}

int measure(const std::string& path, int count) {
  exporter::set_threads(1);
  const auto artifact = exporter::Artifact::open(path);
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) children.push_back(start(artifact));
  double sum = pss_mb(getpid());
  for (const pid_t child : children) sum += pss_mb(child);
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::printf("{\"pss_mb\": %.1f}\n", sum);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3) return measure(argv[1], std::stoi(argv[2]));
    std::fprintf(stderr, "usage: exporter-forked ARTIFACT COUNT\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exporter-forked: %s\n", error.what());
  }
  return 2;
}
