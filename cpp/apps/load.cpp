#include "load.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <optional>
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

/// The calls of one thread.
struct Caller {
  std::vector<double> samples;
  Clock::time_point begin;
  Clock::time_point end;
  std::exception_ptr error;

  /// Makes untimed calls before `ready`, because the first calls of a thread, a stream and a runner
  /// are slow. Then makes the timed calls. The first is due `wait` after the start, and each of the
  /// others `period` after the one before; zero makes them without pauses.
  void call(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int runs,
            std::optional<c10::Stream> stream, std::barrier<>& ready, Clock::duration wait,
            Clock::duration period) {
    const c10::OptionalStreamGuard guard(stream);
    time(artifact, inputs, kUntimedCalls, stream, {});
    ready.arrive_and_wait();
    begin = Clock::now() + wait;
    time(artifact, inputs, runs, stream, period);
    end = Clock::now();
  }

  /// Replaces `samples` by the times of these calls: from when each was due, or from its start if
  /// they are made without pauses. Stops after the first failed call.
  void time(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int runs,
            std::optional<c10::Stream> stream, Clock::duration period) {
    samples.clear();
    for (int i = 0; i < runs && !error; ++i) {
      const bool paced = period > Clock::duration::zero();
      const auto start = paced ? begin + i * period : Clock::now();
      if (paced) std::this_thread::sleep_until(start);
      try {
        const auto outputs = artifact.run(inputs);
        if (stream) stream->synchronize();
      } catch (...) {
        error = std::current_exception();
      }
      samples.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
};

}  // namespace

Load run_load(const Artifact& artifact, const std::vector<at::Tensor>& inputs, int callers,
              int streams, int runs, double calls_per_s) {
  const bool paced = calls_per_s > 0;
  const auto between = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(paced ? 1 / calls_per_s : 0));
  const auto shared = make_streams(artifact.device(), streams);
  std::vector<Caller> all(static_cast<std::size_t>(callers));
  std::barrier ready(callers);
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < all.size(); ++i) {
    running.emplace_back([&, i] {
      const auto stream = shared.empty() ? std::nullopt : std::optional(shared[i % shared.size()]);
      all[i].call(artifact, inputs, runs, stream, ready, static_cast<int>(i) * between,
                  callers * between);
    });
  }
  for (std::thread& thread : running) thread.join();
  Load load{0, {}};
  auto begin = Clock::time_point::max();
  auto end = Clock::time_point::min();
  for (const Caller& caller : all) {
    if (caller.error) std::rethrow_exception(caller.error);
    begin = std::min(begin, caller.begin);
    end = std::max(end, caller.end);
    load.samples.insert(load.samples.end(), caller.samples.begin(), caller.samples.end());
  }
  load.seconds = std::chrono::duration<double>(end - begin).count();
  return load;
}

}  // namespace exporter::app
