#include "systems/phases.h"

#include <atomic>
#include <mutex>

namespace cellerate {

namespace {

std::atomic<bool> watched{false};
std::mutex mutex;
std::vector<PhaseTimes> seen;

void add(const PhaseTimes& times) {
  const std::scoped_lock lock(mutex);
  for (PhaseTimes& each : seen) {
    if (each.backward == times.backward && each.inputs == times.inputs && each.units == times.units &&
        each.vocabulary == times.vocabulary) {
      ++each.calls;
      for (int phase = 0; phase < kPhases; ++phase) each.seconds[phase] += times.seconds[phase];
      return;
    }
  }
  seen.push_back(times);
  seen.back().calls = 1;
}

}  // namespace

void watch_phases(bool on) {
  const std::scoped_lock lock(mutex);
  if (on) seen.clear();
  watched.store(on, std::memory_order_relaxed);
}

bool phases_are_watched() { return watched.load(std::memory_order_relaxed); }

std::vector<PhaseTimes> phase_times() {
  const std::scoped_lock lock(mutex);
  return seen;
}

void PhaseClock::next(Phase phase) {
  const Clock::time_point now = Clock::now();
  if (begun_) {
    times_.seconds[static_cast<int>(phase_)] += std::chrono::duration<double>(now - since_).count();
  }
  begun_ = true;
  phase_ = phase;
  since_ = now;
}

PhaseClock::~PhaseClock() {
  if (!begun_) return;
  next(phase_);
  add(times_);
}

}  // namespace cellerate
