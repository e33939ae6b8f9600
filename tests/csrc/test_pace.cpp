// One thread or several: chosen well by a clock of our own, whatever the pauses between calls and however long threads
// take to wake.
#include "engine/pace.h"

#include <algorithm>
#include <chrono>

#include "check.h"

namespace {

using std::chrono::microseconds;

// Time passes only when a test says so.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;
  static time_point now() { return time; }
  static inline time_point time{std::chrono::hours(1)};
};

// A machine with two cores: a call takes 14 µs on one, and 8 µs on both, once the other thread is awake.
struct Machine {
  cellerate::PaceOf<Clock> pace;
  microseconds alone{14}, together{8};
  Clock::time_point worked{}, awake{};
  int calls = 0, several = 0;

  void call() {
    pace.take([&](bool both, bool) {
      ++calls;
      several += both ? 1 : 0;
      if (!both) {
        Clock::time += alone;
        return 1;
      }
      // The other thread sleeps after 200 µs, and wakes 40 µs after it is called; until then this one does all.
      if (Clock::time - worked > microseconds(200)) awake = Clock::time + microseconds(40);
      const auto asleep = std::clamp<Clock::duration>(awake - Clock::time, Clock::duration(0), alone);
      if (asleep > Clock::duration(0)) Clock::time += asleep + microseconds(2);
      Clock::time += together * ((alone - asleep) / Clock::duration(1)) / (alone / Clock::duration(1));
      worked = Clock::time;
      return 1;
    });
  }

  // The share of the next calls that ran on both, with a pause after every so many of them.
  double share(int count, int in_a_row, microseconds pause) {
    calls = several = 0;
    for (int n = 1; n <= count; ++n) {
      call();
      if (n % in_a_row == 0) Clock::time += pause;
    }
    return static_cast<double>(several) / static_cast<double>(calls);
  }
};

}  // namespace

TEST(calls_in_a_row_run_on_several_threads_soon_and_stay_there) {
  Machine machine;
  machine.share(50, 50, microseconds(0));
  CHECK(machine.share(100'000, 100'000, microseconds(0)) > 0.99);
}

TEST(a_pause_does_not_turn_the_calls_after_it_to_one_thread) {
  Machine machine;
  CHECK(machine.share(100'000, 1000, microseconds(400'000)) > 0.98);
}

TEST(single_calls_with_pauses_between_run_on_one_thread) {
  Machine machine;
  machine.share(20, 1, microseconds(5000));
  CHECK(machine.share(1000, 1, microseconds(5000)) < 0.1);
  // Seldom ones are not trials half of the time.
  CHECK(machine.share(1000, 1, microseconds(1'000'000)) < 0.1);
}

TEST(long_single_calls_with_pauses_between_run_on_several_threads) {
  Machine machine;
  machine.alone = microseconds(14'000);
  machine.together = microseconds(8000);
  machine.share(20, 1, microseconds(5000));
  CHECK(machine.share(1000, 1, microseconds(5000)) > 0.9);
}

TEST(calls_that_several_threads_make_slower_run_on_one_until_it_is_over) {
  Machine machine;
  machine.share(1000, 1000, microseconds(0));
  machine.together = microseconds(60);
  machine.share(20, 20, microseconds(0));
  CHECK(machine.share(50'000, 50'000, microseconds(0)) < 0.02);
  machine.together = microseconds(8);
  machine.share(30'000, 30'000, microseconds(0));
  CHECK(machine.share(50'000, 50'000, microseconds(0)) > 0.98);
}
