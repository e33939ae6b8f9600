// Whether several threads are faster than one, as last measured.
//
// Threads that wait for each other at every step all stand still while another program has the core of one of them: then
// a call on two cores of a busy machine may take three times as long as on one.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cellerate {

// For calls of one kind. Any number of threads may use it at once; what they note may get mixed up, which only makes
// a wrong choice for a while.
class Pace {
  using Clock = std::chrono::steady_clock;

 public:
  // Calls run(several, trial) with what is faster, as far as is known, and notes how long each of the pieces took that it
  // did, whose number it gives. Those of a trial may be few; fewer than `least` tell nothing.
  template <class Run>
  void take(const Run& run, int64_t least = 1) {
    const auto start = Clock::now();
    const Choice choice = choose(start);
    const int64_t pieces = run(choice.several, choice.trial);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (choice.trial) trial_seconds_.store(seconds, kRelaxed);
    // The first call of a trial may have had to wake threads.
    if (pieces >= least && !choice.wakes) note(choice.several, seconds / static_cast<double>(pieces));
  }

 private:
  struct Choice {
    bool several, trial, wakes;
  };

  // Which to use now: each is tried first, then the faster one, and the other now and then.
  Choice choose(Clock::time_point now) {
    if (const int left = left_.load(kRelaxed); left > 0) {
      left_.store(left - 1, kRelaxed);
      return {trial_.load(kRelaxed), true, false};
    }
    const double one = seconds_[0].load(kRelaxed), more = seconds_[1].load(kRelaxed);
    if (more == 0 || one == 0) return begin(more == 0);
    const double time = std::chrono::duration<double>(now.time_since_epoch()).count();
    if (time < due_.load(kRelaxed)) return {more < one, false, false};
    due_.store(time + std::max(kTryAgain, kRarely * trial_seconds_.load(kRelaxed)), kRelaxed);
    return begin(more >= one);
  }

  void note(bool several, double seconds) {
    const int place = several ? 1 : 0;
    const double before = last_[place].exchange(seconds, kRelaxed);
    // The better of the last two, so that a single interrupt changes nothing.
    seconds_[place].store(before > 0 ? std::min(before, seconds) : seconds, kRelaxed);
  }

  static constexpr auto kRelaxed = std::memory_order_relaxed;
  // A trial takes two calls, the slower way. The next one follows after so many seconds, and so many times as long as a
  // call of it took.
  static constexpr double kTryAgain = 0.2, kRarely = 100;

  Choice begin(bool several) {
    trial_.store(several, kRelaxed);
    left_.store(1, kRelaxed);
    return {several, true, true};
  }

  std::atomic<double> seconds_[2] = {0, 0}, last_[2] = {0, 0};  // of one thread, and of several
  std::atomic<double> due_{0}, trial_seconds_{0};
  std::atomic<int> left_{0};  // calls of the trial that is under way
  std::atomic<bool> trial_{false};
};

}  // namespace cellerate
