#include "load.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <exporter/error.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

namespace exporter::app {
namespace {

constexpr int kUntimedCalls = 3;  // of each thread

using Clock = std::chrono::steady_clock;

std::vector<c10::Stream> make_streams(at::Device device, int count) {
  std::vector<c10::Stream> streams;
  for (int i = 0; device.is_cuda() && i < count; ++i) {
    streams.push_back(
        c10::impl::getDeviceGuardImpl(device.type())->getStreamFromGlobalPool(device));
  }
  return streams;
}

/// What the threads of all works share.
struct Crowd {
  std::barrier<> ready;
  std::atomic<int> awaited;  ///< threads that must make their calls before any thread stops
  std::atomic<bool> given_up = false;  ///< whether a thread could not be started

  /// The calls of one artifact may end at different times, those of several load the machine
  /// together until the end.
  Crowd(int threads, std::size_t works) : ready(threads), awaited(works > 1 ? threads : 0) {}
};

/// The calls of one thread.
struct Caller {
  std::vector<double> samples;
  Clock::time_point begin;
  Clock::time_point end;
  std::exception_ptr error;

  /// Makes untimed calls before the crowd is ready, because the first calls of a thread, a stream
  /// and a runner are slow. Then makes `runs` timed calls, and more as long as others are awaited.
  /// The first is due `wait` after the start, and each of the others `period` after the one before;
  /// zero makes them without pauses. Stops after the first failed call.
  void call(const Work& work, int runs, std::optional<c10::Stream> stream, Crowd& crowd,
            Clock::duration wait, Clock::duration period) {
    const c10::OptionalStreamGuard guard(stream);
    for (int i = 0; i < kUntimedCalls; ++i) time(work, stream, Clock::now());
    samples.clear();
    crowd.ready.arrive_and_wait();
    if (crowd.given_up) return;
    begin = Clock::now() + wait;
    for (int i = 0; !error && (i < runs || crowd.awaited > 0); ++i) {
      const bool paced = period > Clock::duration::zero();
      const auto start = paced ? begin + i * period : Clock::now();
      if (paced) std::this_thread::sleep_until(start);
      time(work, stream, start);
      if (i == runs - 1 && !error) --crowd.awaited;
    }
    if (samples.size() < static_cast<std::size_t>(runs)) --crowd.awaited;  // it has failed
    end = Clock::now();
  }

  /// Makes one call and adds the time since it was due.
  void time(const Work& work, std::optional<c10::Stream> stream, Clock::time_point due) {
    if (error) return;
    try {
      const auto outputs = work.artifact.run(work.inputs);
      if (stream) stream->synchronize();
    } catch (...) {
      error = std::current_exception();
      return;
    }
    samples.push_back(std::chrono::duration<double, std::milli>(Clock::now() - due).count());
  }
};

/// Starts a thread for each action. If one cannot be started, ends those that wait for it, and
/// throws Error(usage).
void start(const std::vector<std::function<void()>>& actions, Crowd& crowd,
           std::vector<std::thread>& running) {
  try {
    for (const auto& action : actions) running.emplace_back(action);
  } catch (const std::system_error& error) {
    crowd.given_up = true;
    for (std::size_t i = running.size(); i < actions.size(); ++i) crowd.ready.arrive_and_drop();
    for (std::thread& thread : running) thread.join();
    throw Error(ErrorKind::usage, "only " + std::to_string(running.size()) + " of " +
                                      std::to_string(actions.size()) +
                                      " callers could be started (" + error.what() +
                                      "): give fewer --callers, or raise the limits of "
                                      "processes and memory, as with ulimit -u and ulimit -v");
  }
}

/// Returns all calls of one work. Rethrows the first error.
Load summed(const std::vector<Caller>& callers) {
  Load load{0, {}};
  auto begin = Clock::time_point::max();
  auto end = Clock::time_point::min();
  for (const Caller& caller : callers) {
    if (caller.error) std::rethrow_exception(caller.error);
    begin = std::min(begin, caller.begin);
    end = std::max(end, caller.end);
    load.samples.insert(load.samples.end(), caller.samples.begin(), caller.samples.end());
  }
  load.seconds = std::chrono::duration<double>(end - begin).count();
  return load;
}

}  // namespace

std::vector<Load> run_load(const std::vector<Work>& works, int callers, int streams, int runs) {
  Crowd crowd(callers * static_cast<int>(works.size()), works.size());
  std::vector<std::vector<Caller>> all(works.size(),
                                       std::vector<Caller>(static_cast<std::size_t>(callers)));
  std::vector<std::vector<c10::Stream>> pools;
  for (const Work& work : works) pools.push_back(make_streams(work.artifact.device(), streams));
  std::vector<std::function<void()>> actions;
  for (std::size_t at = 0; at < works.size(); ++at) {
    const Work& work = works[at];
    const auto& shared = pools[at];
    const auto between = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(work.calls_per_s > 0 ? 1 / work.calls_per_s : 0));
    for (std::size_t i = 0; i < all[at].size(); ++i) {
      const auto stream = shared.empty() ? std::nullopt : std::optional(shared[i % shared.size()]);
      actions.emplace_back([&, at, i, stream, between] {
        all[at][i].call(works[at], runs, stream, crowd, static_cast<int>(i) * between,
                        callers * between);
      });
    }
  }
  std::vector<std::thread> running;
  start(actions, crowd, running);
  for (std::thread& thread : running) thread.join();
  std::vector<Load> loads;
  for (const auto& one : all) loads.push_back(summed(one));
  return loads;
}

}  // namespace exporter::app
