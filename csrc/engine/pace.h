// Chooses between one thread and several by measuring which is faster.
//
// Threads that wait for each other at every step all stop while another program holds the core of one of them. Then a
// call on two cores of a busy machine may take three times as long as on one.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cellerate {

// The pace of calls of one kind. Any number of threads may use it at once; their measurements may mix, which only
// causes a wrong choice for a while. Calls after a rest are measured apart from calls in a row, because they find the
// other threads asleep: a rare call may be faster on one thread, and many calls in a row on several.
template <class Clock>
class PaceOf {
  using Time = typename Clock::time_point;

 public:
  // Calls run(several, trial) with the choice that is faster as far as is known. run() returns how many pieces it did,
  // and this function records the time of a piece. A trial may do few pieces; fewer than `least` are not recorded.
  template <class Run>
  void take(const Run& run, int64_t least = 1) {
    const Time start = Clock::now();
    const bool rested = start - ended_.load(kRelaxed) > kAsleepAfter;
    Kind& kind = kinds_[rested ? 1 : 0];
    const Choice choice = choose(kind, rested, start);
    const int64_t pieces = run(choice.several, choice.trial);
    const Time end = Clock::now();
    const double seconds = std::chrono::duration<double>(end - start).count();
    ended_.store(end, kRelaxed);
    if (choice.trial) kind.trial_seconds.store(seconds, kRelaxed);
    if (pieces >= least && choice.counts) note(kind, choice.several, seconds / static_cast<double>(pieces));
  }

 private:
  struct Choice {
    bool several, trial, counts;
  };

  // The measurements of calls after a rest, or of calls in a row.
  struct Kind {
    std::atomic<double> seconds[2] = {0, 0}, last[2] = {0, 0};  // of a piece: on one thread, and on several
    std::atomic<double> due{0}, trial_seconds{0};      // when the next trial is due; length of the last
    std::atomic<int> calls{0};                         // since the last trial
    std::atomic<bool> under_way{false}, trial{false};  // whether a trial runs, and whether on several threads
  };

  Choice choose(Kind& kind, bool rested, Time now) {
    Choice choice = next(kind, rested, now);
    const bool awake = several_.exchange(choice.several, kRelaxed) && !rested;
    if (choice.several && !awake) woken_.store(now, kRelaxed);
    // A call in a row does not count while it still wakes threads. After a rest, every call wakes them.
    if (!rested && choice.several && now - woken_.load(kRelaxed) < kWaking) choice.counts = false;
    if (choice.trial && choice.counts) kind.under_way.store(false, kRelaxed);
    return choice;
  }

  // The next choice: first each of the two, then the faster one, with a trial of the slower one now and then.
  Choice next(Kind& kind, bool rested, Time now) {
    if (kind.under_way.load(kRelaxed)) return {kind.trial.load(kRelaxed), true, true};
    const double one = kind.seconds[0].load(kRelaxed), more = kind.seconds[1].load(kRelaxed);
    if (more == 0 || one == 0) return begin(kind, more == 0, rested);
    const double time = std::chrono::duration<double>(now.time_since_epoch()).count();
    const int calls = kind.calls.fetch_add(1, kRelaxed);
    if (time < kind.due.load(kRelaxed) || calls < kSeldom) return {more < one, false, true};
    kind.due.store(time + std::max(kTryAgain, kRarely * kind.trial_seconds.load(kRelaxed)), kRelaxed);
    return begin(kind, more >= one, rested);
  }

  // A trial lasts until a call counts. The first of several calls in a row may have to reload the cache.
  static Choice begin(Kind& kind, bool several, bool rested) {
    kind.trial.store(several, kRelaxed);
    kind.under_way.store(true, kRelaxed);
    kind.calls.store(0, kRelaxed);
    return {several, true, rested};
  }

  static void note(Kind& kind, bool several, double seconds) {
    const int place = several ? 1 : 0;
    const double before = kind.last[place].exchange(seconds, kRelaxed);
    // The better of the last two, so that a single interrupt changes nothing.
    kind.seconds[place].store(before > 0 ? std::min(before, seconds) : seconds, kRelaxed);
  }

  static constexpr auto kRelaxed = std::memory_order_relaxed;
  // The next trial waits for at least kTryAgain seconds, kRarely times the last trial's length, and kSeldom calls.
  static constexpr double kTryAgain = 0.2, kRarely = 100;
  static constexpr int kSeldom = 10;
  // Threads sleep after kAsleepAfter without work, and take up to kWaking to wake, even on a virtual machine.
  static constexpr std::chrono::microseconds kAsleepAfter{200}, kWaking{100};

  Kind kinds_[2];
  std::atomic<Time> ended_{Time{}},
      woken_{Time{}};                 // when the last call ended; when a call last woke threads
  std::atomic<bool> several_{false};  // whether the last call was on several threads
};

using Pace = PaceOf<std::chrono::steady_clock>;

}  // namespace cellerate
