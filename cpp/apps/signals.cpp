#include "signals.h"

#include <exporter/unpacked.h>
#include <pthread.h>

#include <csignal>
#include <thread>

namespace exporter::app {

void tidy_on_signals(bool except_termination) {
  signal(SIGXFSZ, SIG_IGN);  // writing beyond a limit on file sizes returns an error instead
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int number : {SIGINT, SIGHUP, SIGTERM}) {
    struct sigaction now{};
    sigaction(number, nullptr, &now);
    const bool is_ignored = now.sa_handler == SIG_IGN;  // as nohup does
    if (!is_ignored && !(except_termination && number == SIGTERM)) sigaddset(&awaited, number);
  }
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  // Removing files is not async-signal-safe, so a thread does it instead of a handler.
  std::thread([awaited] {
    int number = 0;
    if (sigwait(&awaited, &number) != 0) return;
    discard_unpacked();
    signal(number, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    raise(number);
  }).detach();
}

}  // namespace exporter::app
