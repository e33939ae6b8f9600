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
// a wrong choice for a while. Calls after a rest, which find the other threads asleep, are judged apart from those that
// follow each other: a caller with one call now and then may be better off alone, and one with many calls in a row not.
template <class Clock>
class PaceOf {
  using Time = typename Clock::time_point;

 public:
  // Calls run(several, trial) with what is faster, as far as is known, and notes how long each of the pieces took that it
  // did, whose number it gives. Those of a trial may be few; fewer than `least` tell nothing.
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
    if (pieces >= least && choice.tells) note(kind, choice.several, seconds / static_cast<double>(pieces));
  }

 private:
  struct Choice {
    bool several, trial, tells;
  };

  // Calls after a rest, or those that follow each other.
  struct Kind {
    std::atomic<double> seconds[2] = {0, 0}, last[2] = {0, 0};  // of one thread, and of several
    std::atomic<double> due{0}, trial_seconds{0};               // of the next trial; of the last one
    std::atomic<int> calls{0};                                  // since the last trial
    std::atomic<bool> under_way{false}, trial{false};           // whether there is a trial, and of what
  };

  Choice choose(Kind& kind, bool rested, Time now) {
    Choice choice = next(kind, rested, now);
    const bool awake = several_.exchange(choice.several, kRelaxed) && !rested;
    if (choice.several && !awake) woken_.store(now, kRelaxed);
    // After a rest, waking the others is part of every call.
    if (!rested && choice.several && now - woken_.load(kRelaxed) < kWaking) choice.tells = false;
    if (choice.trial && choice.tells) kind.under_way.store(false, kRelaxed);
    return choice;
  }

  // Which to use now: each is tried first, then the faster one, and the other now and then.
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

  // A trial lasts until a call tells something. The first of several in a row may have to load what the others kept.
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
  // The next trial of the slower way follows after so many seconds, so many times as long as a call of it took, and so
  // many calls.
  static constexpr double kTryAgain = 0.2, kRarely = 100;
  static constexpr int kSeldom = 10;
  // Threads sleep after so long without work, and take up to so long to wake, on a virtual machine too.
  static constexpr std::chrono::microseconds kAsleepAfter{200}, kWaking{100};

  Kind kinds_[2];
  std::atomic<Time> ended_{Time{}}, woken_{Time{}};  // of the last call; of the last call that woke threads
  std::atomic<bool> several_{false};                 // whether the last call was on several threads
};

using Pace = PaceOf<std::chrono::steady_clock>;

}  // namespace cellerate
